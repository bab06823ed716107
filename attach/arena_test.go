package attach

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

func newArena() *arena {
	return &arena{account: &account{budget: newBudget(), uid: 7}}
}

// Rings of many sizes are created and released. None overlaps another, all are zero at first, the
// budget agrees with what exists, and nothing is left at the end.
func TestRingsOfAnArena(t *testing.T) {
	a := newArena()
	r := rand.New(rand.NewPCG(1, 2))
	type live struct {
		*ringMemory
		mem  []byte
		mark byte
	}
	var rings []live
	check := func(l live) {
		t.Helper()
		if i := slices.IndexFunc(l.mem, func(b byte) bool { return b != l.mark }); i >= 0 {
			t.Fatalf("byte %d of a ring of %d is %d, want %d", i, len(l.mem), l.mem[i], l.mark)
		}
	}
	for step := range 3000 {
		grow := step < 1500
		if len(rings) == 0 || r.IntN(3) > 0 == grow {
			size := 1 + r.IntN(1<<r.IntN(18))
			m, mem, fd, err := a.newRing(size)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			l := live{m, mem, 0}
			if len(mem) != size || cap(mem) != size || m.offset()%ringAlign != 0 {
				t.Fatalf("ring of %d bytes: %d of %d at %d", size, len(mem), cap(mem), m.offset())
			}
			check(l)
			l.mark = byte(1 + r.IntN(255))
			for i := range mem {
				mem[i] = l.mark
			}
			rings = append(rings, l)
		} else {
			i := r.IntN(len(rings))
			check(rings[i])
			rings[i].release()
			rings = slices.Delete(rings, i, i+1)
		}
		want := amounts{mappings: uint64(len(a.chunks)), descriptors: uint64(len(a.chunks))}
		for _, c := range a.chunks {
			want[memory] += uint64(len(c.mem))
		}
		for _, l := range rings {
			want[memory] += uint64(l.span.end - l.span.start)
		}
		if a.account.held != want {
			t.Fatalf("the budget has %v, want %v", a.account.held, want)
		}
		if len(a.chunks) > 16 {
			t.Fatalf("%d rings are in %d chunks", len(rings), len(a.chunks))
		}
	}
	for _, l := range rings {
		check(l)
		l.release()
	}
	if len(a.chunks) > 0 || a.account.held != (amounts{}) {
		t.Errorf("without rings: %d chunks, %v in the budget", len(a.chunks), a.account.held)
	}
}

// A client that has written to all of a chunk finds zeros where a ring was before.
func TestRingMemoryIsZeroedBeforeItIsUsedAgain(t *testing.T) {
	a := newArena()
	other, _ := a.newRings(1)
	first, _ := a.newRings(3 * ringAlign)
	first.release()
	for i := range first.chunk.mem {
		first.chunk.mem[i] = 0xff
	}
	again, err := a.newRings(2 * ringAlign)
	if err != nil || again.span.start != first.span.start {
		t.Fatalf("the ring is at %+v, was at %+v: %v", again.span, first.span, err)
	}
	if mem := again.ring(0, 2*ringAlign); !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("a ring begins with what was there before")
	}
	again.release()
	other.release()
}

// While the memory of a large ring is zeroed, the processor is yielded again and again.
func TestZeroingYields(t *testing.T) {
	const size = 256 * clearAtATime
	c := &chunk{mem: make([]byte, size), free: []span{{0, size}}, fresh: size}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var runs atomic.Int64
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			runs.Add(1)
			runtime.Gosched()
		}
	}()
	runtime.Gosched()
	before := runs.Load()
	c.cut(size)
	if n := runs.Load() - before; n < size/clearAtATime/4 {
		t.Errorf("another goroutine had %d runs while %d bytes were zeroed", n, size)
	}
	stop.Store(true)
	<-done
}

// If a user may not have as much as the arena would like, a ring gets a chunk of its own size.
func TestArenaGrowsByWhatTheBudgetHas(t *testing.T) {
	a := newArena()
	a.account.budget.total[memory] = 4 * minChunk // a user gets half of it
	first, err := a.newRings(8 * ringAlign)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(first.chunk.mem); n != minChunk {
		t.Errorf("the first chunk has %d bytes", n)
	}
	second, err := a.newRings(4 * ringAlign) // there is room
	if err != nil || second.chunk != first.chunk {
		t.Errorf("second ring: %v", err)
	}
	first.release()
	second.release()
	if _, err := a.newRings(maxRings + 1); err == nil {
		t.Error("a ring of more than the limit was granted")
	}
	a.account.budget.total[memory] = 5 * pageSize
	small, err := a.newRings(pageSize - ringAlign)
	if err != nil || len(small.chunk.mem) != pageSize {
		t.Fatalf("with little memory: %+v, %v", small, err)
	}
	small.release()
}

// Rings of one size are at different offsets in their pages: the processor's caches have room for
// few lines with the same one.
func TestRingsOfOneSizeUseAllSetsOfTheCache(t *testing.T) {
	for _, size := range []int{256 + 64, 4096, 8192, 64 << 10} {
		a := newArena()
		at := map[uint32]bool{}
		var rings []*ringMemory
		for range 64 {
			m, err := a.newRings(size)
			if err != nil {
				t.Fatal(err)
			}
			at[m.offset()%pageSize] = true
			rings = append(rings, m)
		}
		if len(at) < 16 {
			t.Errorf("64 rings of %d bytes have %d offsets in their pages", size, len(at))
		}
		for _, m := range rings {
			m.release()
		}
	}
}

func ringMappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte("/memfd:softroce-rings"))
}

func TestQueuePairsOfAClientShareMappings(t *testing.T) {
	const pairs = 2000
	s, e := newStepped(t, Config{})
	defer e.Close()
	before := ringMappings(t)
	c := newSession(t, s, 7)
	c.play(appendRequest(appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{}), abi.OpOpenDevice, 0, abi.OpenDeviceRequest{}))
	opened := c.account.held
	must := func(op uint16, body ...any) uint32 {
		t.Helper()
		if err := c.try(op, body...); err != nil {
			t.Fatal(err)
		}
		return c.objects.last
	}
	pd := must(abi.OpAllocPD)
	cq := must(abi.OpCreateCQ, abi.CreateCQRequest{Entries: 64})
	init := abi.CreateQPRequest{PD: pd, SendCQ: cq, RecvCQ: cq, Type: 2, Cap: abi.QPCap{MaxSendWR: 128, MaxRecvWR: 128}}
	var handles []uint32
	for range pairs {
		handles = append(handles, must(abi.OpCreateQP, init))
	}
	if n := ringMappings(t) - before; n == 0 || n > 16 {
		t.Errorf("%d queue pairs use %d mappings", pairs, n)
	}
	if n := c.account.held[mappings]; n > 18 {
		t.Errorf("the budget of %d queue pairs has %d mappings", pairs, n)
	}
	for _, h := range handles {
		must(abi.OpDestroyQP, abi.HandleRequest{Handle: h})
	}
	must(abi.OpDestroyCQ, abi.HandleRequest{Handle: cq})
	must(abi.OpDeallocPD, abi.HandleRequest{Handle: pd})
	if c.account.held != opened {
		t.Errorf("with no object left the client has %v, at first %v", c.account.held, opened)
	}
	c.leave()
	if n := ringMappings(t); n != before {
		t.Errorf("%d mappings are left", n-before)
	}
}
