package transport

import (
	"math"
	"reflect"
	"runtime"
	"testing"
	"unsafe"

	"softroce/internal/ib"
	"softroce/internal/prefetch"
	"softroce/packet"
)

// A queue pair takes memory for the work requests that are posted, not for those that might be: the
// engine creates it between two packets of other clients.
func TestQueuePairTakesMemoryAsItIsUsed(t *testing.T) {
	const depth, most = 32768, 64 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	q, err := New(Config{Service: packet.RC, SendDepth: depth, MaxSendSGE: 30, MaxInline: 1024, Counters: new(Counters)})
	must(t, err)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("a queue pair of depth %d allocates %d bytes, want at most %d", q.sq.depth, n, most)
	}
}

// Entries of the send queue keep what was posted, also when the ring wraps around.
func TestSendQueueKeepsWhatWasPosted(t *testing.T) {
	for _, depth := range []int{1, 3, wqesPerBlock, wqesPerBlock + 1, 5 * wqesPerBlock} {
		a, _ := connect(t, defaults)
		s := &a.qp.sq
		s.init(&Config{Pool: new(Pool), SendDepth: depth, MaxSendSGE: 2, MaxInline: 8})
		const first = math.MaxUint32 - wqesPerBlock
		s.headIndex, s.tailIndex = first, first
		post := func(i uint32) {
			wr := SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: []SGE{{Addr: uint64(i)}, {Addr: uint64(i) + 1}}}
			if i%2 == 0 {
				wr = SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendInline, Inline: []byte{byte(i), byte(i >> 8)}}
			}
			must(t, a.qp.PostSend(&wr))
		}
		for i := range uint32(4 * depth) {
			if int(s.used()) == depth {
				s.pop()
			}
			s.pool.Recycle()
			post(first + i)
			for j := s.headIndex; j != s.tailIndex; j++ {
				w := s.at(j)
				good := w.ID == uint64(j)
				if j%2 == 0 {
					good = good && string(w.Inline) == string([]byte{byte(j), byte(j >> 8)})
				} else {
					good = good && len(w.SGEs) == 2 && w.SGEs[0].Addr == uint64(j) && w.SGEs[1].Addr == uint64(j)+1
				}
				if !good {
					t.Fatalf("depth %d: entry %d of %d to %d is %+v", depth, j, s.headIndex, s.tailIndex, w.SendWR)
				}
			}
		}
		if err := a.qp.PostSend(&SendWR{Opcode: ib.WRSend}); err != ErrFull {
			t.Errorf("depth %d: posting to a full queue: %v", depth, err)
		}
	}
}

// Nothing is left in the next entry of what was filled in before: not by an earlier use of the
// memory, nor by a NextSend without PostNextSend.
func TestNextSendIsZero(t *testing.T) {
	a, _ := connect(t, defaults)
	s := &a.qp.sq
	s.init(&Config{Pool: new(Pool), SendDepth: 2 * wqesPerBlock, MaxSendSGE: 1, MaxInline: 8})
	for i := range 4 * wqesPerBlock {
		wr := a.qp.NextSend()
		if !reflect.ValueOf(*wr).IsZero() {
			t.Fatalf("entry %d is %+v", i, *wr)
		}
		*wr = SendWR{ID: 1, Opcode: ib.WRFlush, Flags: ib.SendInline, Imm: 2, RemoteAddr: 3, RKey: 4, CompareAdd: 5, Swap: 6,
			RemoteQPN: 7, RemoteSRQ: 8, RemoteQKey: 9, Dest: 10, SGEs: []SGE{{Length: 11}}, Inline: []byte{12},
			Bind: Bind{LKey: 13}, Flush: Flush{Length: 14}, Fault: Fault{Status: 15}}
		if i%3 == 0 {
			continue
		}
		a.qp.PostNextSend()
		w := s.at(s.tailIndex - 1)
		if w.ID != 1 || w.SGEs != nil || string(w.Inline) != "\x0c" || w.length != 1 || w.status != 15 ||
			w.started || w.done || w.local || w.received != 0 || w.first != 0 {
			t.Fatalf("posted %+v", w)
		}
		w.started, w.done, w.local, w.received, w.first = true, true, true, 1, 1
		s.pop()
		s.pool.Recycle()
	}
}

// What PrefetchDeadline and ResponderSize say of a QP, which begins eight bytes into a cache line:
// allocations of this size have a header.
func TestPrefetchedPartsOfAQP(t *testing.T) {
	var q QP
	line := func(offset uintptr) uintptr { return (8 + offset) / prefetch.LineSize }
	from := unsafe.Offsetof(q.req)
	if line(from+unsafe.Offsetof(q.req.deadline)) != line(from+unsafe.Offsetof(q.req.rnrUntil)) {
		t.Error("the deadlines are in two cache lines")
	}
	if end := unsafe.Offsetof(q.resp) + unsafe.Sizeof(q.resp); end > ResponderSize {
		t.Errorf("the responder ends at %d, behind %d", end, ResponderSize)
	}
}

// An idle queue pair has no memory for work requests. What is complete is not used for others
// before Recycle, and not at all after Abandon: frames or writes may refer to it.
func TestMemoryOfWorkRequestsPassesOn(t *testing.T) {
	var p Pool
	newQueue := func() (s sendQueue) {
		s.init(&Config{Pool: &p, SendDepth: 64})
		return s
	}
	// use posts and completes a work request, and returns its block.
	use := func(s *sendQueue) *wqeBlock {
		b := s.blockToPost()
		s.tailIndex++
		s.pop()
		for _, kept := range s.blocks {
			if kept != nil {
				t.Error("an empty queue keeps a block")
			}
		}
		return b
	}
	a, b := newQueue(), newQueue()
	first := use(&a)
	if use(&b) == first {
		t.Error("a block was used again before Recycle")
	}
	p.Recycle()
	if x, y := use(&a), use(&b); x != first && y != first {
		t.Error("a block was not used again after Recycle")
	}
	late := b.blockToPost()
	b.tailIndex++
	p.Abandon()
	b.pop()
	p.Recycle()
	for range 3 {
		if b := use(&a); b == first || b == late {
			t.Error("a block was used again after Abandon")
		}
	}
}

// What a pool keeps of reads is bounded, also after a client that needed many at a time, and does
// not refer to a read arena that the IO has replaced.
func TestPoolKeepsNoLongOrOldLists(t *testing.T) {
	a, _ := connect(t, defaults)
	a.useCopiedMemory(1 << 20)
	p := a.qp.cfg.Pool
	use := func(reads int, meanwhile func()) {
		var l readAhead
		for range reads {
			must(t, l.queue(&a.env, p, a.region, sideBase, 1))
		}
		a.flush()
		meanwhile()
		l.discard(p)
	}
	want := func(after string, n int) {
		t.Helper()
		if len(p.reads) != n {
			t.Errorf("after %s: the pool has %d lists, want %d", after, len(p.reads), n)
		}
	}
	use(maxReads+1, func() {})
	want("too many reads", 0)
	use(maxReads, func() {})
	want("many reads", 1)
	use(1, p.Abandon)
	want("Abandon while a list is in use", 0)
	use(1, func() {})
	p.Abandon()
	want("Abandon", 0)
}
