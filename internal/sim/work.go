package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A pair is two connected queue pairs.
type pair struct {
	endpoints [2]*endpoint
	attr      nic.QPAttr // attributes of endpoints[0]
	replaced  bool       // its queue pairs were connected again, as another pair
}

// An endpoint is a queue pair of a pair, with the work that it posted and how much of it is
// complete.
type endpoint struct {
	*queue
	sim   *simulation
	pair  *pair
	peer  *endpoint
	mtu   int
	posts int // work requests left to post
	long  int // of which so many may be long READs

	sends []work // by work request number
	done  int    // how many of sends are known to be complete
	recvs *recvPool
	lost  bool // completions may be missing: it was reset or destroyed, or its CQ has overrun

	recvPausedUntil int64 // no receives are posted before this time

	arrivals []int // indices in sends of those that consume a receive
	arrived  int   // how many of the peer's arrivals were received

	window window

	cell span // counter for the peer's FETCH_ADDs, 8 bytes
	swap span // counter for the peer's COMPARE_SWAPs, 8 bytes
	adds int  // FETCH_ADDs posted
	cas  int  // COMPARE_SWAPs posted
}

// work is a send work request and its expected effect.
type work struct {
	op            ib.WROpcode
	src           span // payload: in this side's memory; READs: in the peer's
	dst           span // WRITE: in the peer's memory; READ, atomics: in this side's
	imm           uint32
	signaled      bool
	bad           bool   // invalid on purpose
	own           bool   // src is used by nothing else and not overwritten yet: see buffers.go
	throughWindow bool   // a WRITE through the peer's window
	expect        uint64 // atomics: the value it returns if all before it succeeded
	succeeded     bool
}

type recvWork struct {
	to        span
	succeeded bool
	completed bool
}

// A recvPool is what was posted to a receive queue, by work request ID.
type recvPool struct {
	works     []recvWork
	completed int
	shared    bool
	endpoints []*endpoint // endpoints that receive from it
}

func (e *endpoint) reserve() error {
	var ok, ok2 bool
	e.cell, ok = e.alloc(8)
	e.swap, ok2 = e.alloc(8)
	if !ok || !ok2 {
		return fmt.Errorf("the profile has too little memory for the counters of a pair")
	}
	for _, s := range []span{e.cell, e.swap} {
		le.PutUint64(e.mem[s.off:], 0)
		le.PutUint64(e.expected[s.off:], 0)
		e.unchecked = append(e.unchecked, s) // checked by checkAtomics
	}
	return nil
}

// post posts work for each endpoint; as much as possible with all.
func (sim *simulation) post(all bool) (posted bool) {
	for _, x := range sim.pairs {
		if x.replaced {
			continue
		}
		for _, e := range x.endpoints {
			for e.wantsReceive() {
				if !all && sim.rnd.Float64() < sim.profile.LateRecv {
					break
				}
				if !e.postRecvWork() {
					break
				}
				posted = true
			}
			for e.alive() && !e.deregistered && e.posts > 0 && e.SendRoom() > 0 && (all || sim.rnd.IntN(3) > 0) {
				e.posts--
				e.postWork()
				posted = true
			}
		}
	}
	return posted
}

// wantsReceive decides whether to post a receive. In the end there are a few more than messages, so
// that errors have some to flush.
func (e *endpoint) wantsReceive() bool {
	waiting := len(e.recvs.works) - e.recvs.completed
	if !e.alive() || e.sim.now < e.recvPausedUntil || e.recv.Room() == 0 {
		return false
	}
	if !e.shared {
		return waiting < 32 && len(e.recvs.works) < len(e.peer.arrivals)+2
	}
	need := 0
	for _, o := range e.recvs.endpoints {
		if o.pair.replaced || !o.alive() {
			need++ // it may have consumed one
		} else {
			need += len(o.peer.arrivals) - o.arrived + 2
		}
	}
	return waiting < need
}

func (e *endpoint) postRecvWork() bool {
	n := e.sim.profile.MaxMessage
	if e.sim.profile.Errors > 0 && e.sim.rnd.Float64() < e.sim.profile.Errors/4 {
		n /= 4 // too short for some messages
	}
	to, ok := e.alloc(n)
	if !ok {
		e.sim.outOfMemory = fmt.Errorf("the profile has too little memory for receives")
		return false
	}
	e.recv.PostRecv(recvID|uint64(len(e.recvs.works)), e.split(to))
	e.recvs.works = append(e.recvs.works, recvWork{to: to})
	return true
}

// recvID is set in the work request IDs of receives.
const recvID = 1 << 32

// split returns a span as one to three scatter/gather elements, some of them empty.
func (e *endpoint) split(s span) (l []transport.SGE) {
	for k := e.sim.rnd.IntN(3); k > 0; k-- {
		n := e.sim.rnd.IntN(s.n + 1)
		l = append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(n), LKey: e.key})
		s.off, s.n = s.off+n, s.n-n
	}
	return append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(s.n), LKey: e.key})
}

var (
	operations = []ib.WROpcode{ib.WRSend, ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWrite,
		ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp}
	writes = operations[:6]
	reads  = operations[6:8]
)

// postWork draws and posts a work request.
func (e *endpoint) postWork() {
	r := e.sim.rnd
	if e.sim.profile.Windows && e.tgt == nil && r.IntN(3) == 0 && e.postWindowWork() {
		return
	}
	k := work{op: e.sim.profile.Operations[r.IntN(len(e.sim.profile.Operations))], signaled: r.IntN(4) > 0, imm: r.Uint32()}
	n := r.IntN(e.sim.profile.MaxMessage + 1)
	if r.IntN(8) == 0 {
		n = min(e.mtu*r.IntN(4), e.sim.profile.MaxMessage) // a whole number of packets
	}
	if k.op == ib.WRRDMARead && e.long > 0 {
		e.long--
		n = e.sim.profile.Source - 1 - r.IntN(e.sim.profile.Source/2)
	}
	k.src = e.sim.source(n)
	wr := transport.SendWR{ID: uint64(len(e.sends)), Opcode: k.op, Imm: k.imm, RKey: e.peer.key, RemoteSRQ: e.peer.srqNumber()}
	if !e.target(&k, &wr, n) {
		return
	}
	if e.peer.deregistered && k.op != ib.WRSend && k.op != ib.WRSendWithImm && k.dst.n > 0 {
		k.bad = true
	}
	if k.signaled {
		wr.Flags |= ib.SendSignaled
	}
	if r.IntN(10) == 0 {
		wr.Flags |= ib.SendFence
	}
	if r.Float64() < e.sim.profile.Errors {
		e.makeInvalid(&k, &wr)
	}
	if k.op == ib.WRSend || k.op == ib.WRSendWithImm || k.op == ib.WRRDMAWriteWithImm {
		e.arrivals = append(e.arrivals, len(e.sends))
	}
	e.sends = append(e.sends, k)
	e.PostSend(&wr)
}

// source draws what a work request sends, or a READ reads.
func (sim *simulation) source(n int) span { return span{sim.rnd.IntN(sim.profile.Source - n), n} }

// target allocates a work request's memory on both sides; false if there is not enough.
func (e *endpoint) target(k *work, wr *transport.SendWR, n int) (ok bool) {
	switch k.op {
	case ib.WRSend, ib.WRSendWithImm:
		e.payload(k, wr)
		return true
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		if k.dst, ok = e.peer.alloc(n); ok {
			e.payload(k, wr)
			wr.RemoteAddr = uint64(k.dst.off)
		}
	case ib.WRRDMARead:
		if k.dst, ok = e.alloc(n); ok {
			wr.SGEs, wr.RemoteAddr = e.split(k.dst), uint64(k.src.off)
		}
	default:
		if k.dst, ok = e.alloc(8); !ok {
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

func (e *endpoint) payload(k *work, wr *transport.SendWR) {
	if e.sim.rnd.IntN(2) == 0 {
		e.ownBuffer(k)
	}
	if k.src.n <= queueCaps.MaxInline && e.sim.rnd.IntN(2) == 0 {
		wr.Flags |= ib.SendInline
		wr.Inline = e.source(k)
		e.reuse(k)
		return
	}
	wr.SGEs = e.split(k.src)
}

// makeInvalid draws an error and puts it into a work request, if it applies to it.
func (e *endpoint) makeInvalid(k *work, wr *transport.SendWR) {
	remote := k.op != ib.WRSend && k.op != ib.WRSendWithImm && k.dst.n > 0
	switch e.sim.rnd.IntN(4) {
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
