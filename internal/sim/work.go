package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A pair is two connected queue pairs.
type pair struct {
	ends [2]*end
	attr nic.QPAttr // of ends[0]
	over bool       // its queue pairs were connected anew
}

// An end is one of them: what it posted and what became of it.
type end struct {
	*queue
	w     *world
	pair  *pair
	peer  *end
	mtu   int
	posts int // left to post

	sends []work // by work request number
	done  int    // of sends, complete as far as completions tell
	recvs *recvPool
	lost  bool // completions may be missing: it was reset or destroyed, or its CQ overflowed

	absent int64 // until when no receives are posted

	arrivals []int // of sends: those that consume a receive, in order
	arrived  int   // of the peer's arrivals, seen here

	pane pane

	cell span // an 8-byte counter that the peer's FETCH_ADDs work on
	swap span // a cell that the peer's COMPARE_SWAPs go up on
	adds int  // FETCH_ADDs posted, and
	cas  int  // COMPARE_SWAPs
}

// work is a send work request and what it should do.
type work struct {
	op       ib.WROpcode
	src      span // its payload: of this side's memory, READs: of the peer's
	dst      span // WRITE: of the peer's memory; READ, atomics: of this side's
	imm      uint32
	signaled bool
	bad      bool   // wrong on purpose
	through  bool   // a WRITE through the peer's window
	expect   uint64 // atomics: the value they should find, if all before them succeeded
	ended    bool
}

type recvWork struct {
	to        span
	ended     bool // with success
	completed bool
}

// A recvPool is what was posted to a receive queue, by work request number.
type recvPool struct {
	works     []recvWork
	completed int
	shared    bool
	ends      []*end // who take from it
}

func (e *end) reserve() error {
	var ok, ok2 bool
	e.cell, ok = e.take(8)
	e.swap, ok2 = e.take(8)
	if !ok || !ok2 {
		return fmt.Errorf("no memory for the cells of a pair")
	}
	for _, s := range []span{e.cell, e.swap} {
		le.PutUint64(e.mem[s.off:], 0)
		le.PutUint64(e.shadow[s.off:], 0)
		e.vague = append(e.vague, s) // judged on their own
	}
	return nil
}

// post lets each end post some of its work; all that has room where everybody waits.
func (w *world) post(all bool) (posted bool) {
	for _, x := range w.pairs {
		if x.over {
			continue
		}
		for _, e := range x.ends {
			for e.wantsReceive() {
				if !all && w.rnd.Float64() < w.profile.LateRecv {
					break
				}
				if !e.postRecvWork() {
					break
				}
				posted = true
			}
			for e.alive() && !e.dead && e.posts > 0 && e.SendRoom() > 0 && (all || w.rnd.IntN(3) > 0) {
				e.posts--
				e.postWork()
				posted = true
			}
		}
	}
	return posted
}

// wantsReceive decides whether to post a receive: in the end there are some more than
// messages, so that errors find some to flush.
func (e *end) wantsReceive() bool {
	waiting := len(e.recvs.works) - e.recvs.completed
	if !e.alive() || e.w.now < e.absent || e.recv.Room() == 0 {
		return false
	}
	if !e.shared {
		return waiting < 32 && len(e.recvs.works) < len(e.peer.arrivals)+2
	}
	need := 0
	for _, o := range e.recvs.ends {
		if o.pair.over || !o.alive() {
			need++ // it may have taken one
		} else {
			need += len(o.peer.arrivals) - o.arrived + 2
		}
	}
	return waiting < need
}

func (e *end) postRecvWork() bool {
	n := e.w.profile.MaxMessage
	if e.w.profile.Errors > 0 && e.w.rnd.Float64() < e.w.profile.Errors/4 {
		n /= 4 // a message may be too long for it
	}
	to, ok := e.take(n)
	if !ok {
		e.w.short = fmt.Errorf("the profile gives too little memory for receives")
		return false
	}
	e.recv.PostRecv(recvID|uint64(len(e.recvs.works)), e.split(to))
	e.recvs.works = append(e.recvs.works, recvWork{to: to})
	return true
}

// recvID marks the work request numbers of receives.
const recvID = 1 << 32

// split makes a scatter/gather list of one to three elements, of which some may be empty.
func (e *end) split(s span) (l []transport.SGE) {
	for k := e.w.rnd.IntN(3); k > 0; k-- {
		n := e.w.rnd.IntN(s.n + 1)
		l = append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(n), LKey: e.key})
		s.off, s.n = s.off+n, s.n-n
	}
	return append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(s.n), LKey: e.key})
}

var operations = []ib.WROpcode{ib.WRSend, ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite,
	ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp}

// postWork draws a work request and posts it.
func (e *end) postWork() {
	r := e.w.rnd
	if e.w.profile.Windows && e.tgt == nil && r.IntN(3) == 0 && e.postPane() {
		return
	}
	k := work{op: operations[r.IntN(len(operations))], signaled: r.IntN(4) > 0, imm: r.Uint32()}
	n := r.IntN(e.w.profile.MaxMessage + 1)
	if r.IntN(8) == 0 {
		n = min(e.mtu*r.IntN(4), e.w.profile.MaxMessage) // a whole number of packets
	}
	k.src = span{r.IntN(sourceSize - n), n}
	wr := transport.SendWR{ID: uint64(len(e.sends)), Opcode: k.op, Imm: k.imm, RKey: e.peer.key, RemoteSRQ: e.peer.srqNumber()}
	if !e.target(&k, &wr, n) {
		return
	}
	if e.peer.dead && k.op != ib.WRSend && k.op != ib.WRSendWithImm && k.dst.n > 0 {
		k.bad = true
	}
	if k.signaled {
		wr.Flags |= ib.SendSignaled
	}
	if r.IntN(10) == 0 {
		wr.Flags |= ib.SendFence
	}
	if r.Float64() < e.w.profile.Errors {
		e.spoil(&k, &wr)
	}
	if k.op == ib.WRSend || k.op == ib.WRSendWithImm || k.op == ib.WRRDMAWriteWithImm {
		e.arrivals = append(e.arrivals, len(e.sends))
	}
	e.sends = append(e.sends, k)
	e.PostSend(&wr)
}

// target gives a work request its memory on both sides; false where none is left.
func (e *end) target(k *work, wr *transport.SendWR, n int) (ok bool) {
	switch k.op {
	case ib.WRSend, ib.WRSendWithImm:
		e.payload(k, wr)
		return true
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		if k.dst, ok = e.peer.take(n); ok {
			e.payload(k, wr)
			wr.RemoteAddr = uint64(k.dst.off)
		}
	case ib.WRRDMARead:
		if k.dst, ok = e.take(n); ok {
			wr.SGEs, wr.RemoteAddr = e.split(k.dst), uint64(k.src.off)
		}
	default:
		if k.dst, ok = e.take(8); !ok {
			return false
		}
		wr.SGEs = e.split(k.dst)
		if k.op == ib.WRAtomicFetchAndAdd {
			k.expect, wr.CompareAdd, wr.RemoteAddr = uint64(e.adds), 1, uint64(e.peer.cell.off)
			e.adds++
		} else {
			k.expect, wr.RemoteAddr = uint64(e.cas), uint64(e.peer.swap.off)
			wr.CompareAdd, wr.Swap = k.expect, k.expect+1
			e.cas++
		}
	}
	return ok
}

func (e *end) payload(k *work, wr *transport.SendWR) {
	if k.src.n <= queueCaps.MaxInline && e.w.rnd.IntN(2) == 0 {
		wr.Flags |= ib.SendInline
		wr.Inline = e.mem[k.src.off:][:k.src.n]
		return
	}
	wr.SGEs = e.split(k.src)
}

// spoil makes a work request wrong, if the draw finds something to be wrong in it.
func (e *end) spoil(k *work, wr *transport.SendWR) {
	remote := k.op != ib.WRSend && k.op != ib.WRSendWithImm && k.dst.n > 0
	switch e.w.rnd.IntN(4) {
	case 0:
		if remote {
			k.bad = true
			wr.RKey ^= 0x5a
		}
	case 1:
		if remote {
			k.bad = true
			wr.RemoteAddr = uint64(len(e.peer.mem))
		}
	case 2:
		if len(wr.SGEs) > 0 && wr.SGEs[0].Length > 0 {
			k.bad = true
			wr.SGEs[0].LKey ^= 0x5a
		}
	case 3:
		k.bad, wr.Opcode = true, 77
	}
}
