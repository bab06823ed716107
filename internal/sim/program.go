package sim

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
)

var le = binary.LittleEndian

const everyAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessMWBind

// A program is a verbs program on a NIC: its context, its memory and its completion queue. It
// writes the rings as a client in another process would.
type program struct {
	dev    *nic.Device
	ctx    *nic.Context
	bell   []byte
	pd     *nic.PD
	cq     *nic.CQ
	cqRing []byte
	cqes   uint32 // slots of cqRing
	polled uint32

	srq  *nic.SRQ // nil: none
	ring *recvRing
	pool recvPool // of the SRQ

	domain *nic.XRCD // nil: no XRC
	xsrq   *nic.SRQ
	xring  *recvRing
	xpool  recvPool

	mem    []byte
	mr     *nic.MR
	key    uint32 // of mr, after that is gone too
	dead   bool   // mr is gone
	shadow []byte // what mem must hold
	vague  []span // where it may hold anything: work that did not succeed
	next   int    // of mem, not given away

	deaf     int64 // until when it does not poll
	drained  map[*nic.QP]bool
	overflow bool // of cq
	windows  []*nic.MW
	closed   bool
	killed   error
}

// A span is a range of memory.
type span struct{ off, n int }

const (
	sourceSize = 1 << 17 // at the start: random bytes that no work request changes
	cqEntries  = 2048
	smallCQ    = 32
	srqSlots   = 256
)

func (p *program) AsyncEvent(e nic.Event) {
	switch e.Type {
	case ib.EventCQErr:
		p.overflow = true
	case ib.EventSQDrained:
		p.drained[e.QP] = true
	}
}
func (p *program) Killed(reason error) { p.killed = reason }

func (w *world) newProgram(d *nic.Device) (*program, error) {
	p := &program{dev: d, bell: nic.NewPage(abi.DoorbellSize), mem: nic.NewPage(w.profile.memory()), next: sourceSize,
		cqes: cqEntries, drained: map[*nic.QP]bool{}}
	if w.profile.SmallCQ {
		p.cqes = smallCQ
	}
	for i := 0; i < len(p.mem); i += 8 {
		v := uint64(0xa5a5a5a5a5a5a5a5)
		if i < sourceSize {
			v = w.rnd.Uint64()
		}
		le.PutUint64(p.mem[i:], v)
	}
	p.shadow = append([]byte(nil), p.mem...)
	return p, p.open(w.profile.SharedRecv)
}

// open makes the program's objects on its device.
func (p *program) open(shared bool) (err error) {
	if p.ctx, err = p.dev.Open(nic.ContextOptions{Doorbell: p.bell, DoorbellFD: -1, Events: p, Comm: "sim"}); err != nil {
		return err
	}
	if p.pd, err = p.ctx.AllocPD(); err != nil {
		return err
	}
	p.cqRing = nic.NewPage(abi.RingSize(int(p.cqes), abi.CQESize))
	if p.cq, err = p.ctx.CreateCQ(nic.CQConfig{Entries: int(p.cqes), Ring: p.cqRing}); err != nil {
		return err
	}
	if shared {
		p.ring = newRecvRing(srqSlots, queueCaps.MaxRecvSGE)
		if p.srq, err = p.ctx.CreateSRQ(nic.SRQInit{PD: p.pd, MaxWR: srqSlots, MaxSGE: queueCaps.MaxRecvSGE, Ring: p.ring.mem}); err != nil {
			return err
		}
		p.pool.shared = true
	}
	if p.mr, err = p.ctx.RegMR(p.pd, mrtable.HeapMemory(p.mem), 0, uint64(len(p.mem)), everyAccess); err != nil {
		return err
	}
	p.key = p.mr.LKey()
	return nil
}

// take gives away n bytes of memory, with an untouched gap behind them.
func (p *program) take(n int) (span, bool) {
	s := span{(p.next + 7) &^ 7, n}
	if s.off+n+8 > len(p.mem) {
		return span{}, false
	}
	p.next = s.off + n + 8
	return s, true
}

// A cqe is a completion as the program sees it.
type cqe struct {
	id      uint64
	status  ib.WCStatus
	opcode  ib.WCOpcode
	byteLen uint32
	imm     uint32
	qpn     uint32
	srcQP   uint32
	flags   ib.WCFlags
}

func (p *program) poll() (c cqe, ok bool) {
	if atomic.LoadUint32(word(p.cqRing, abi.RingProducer)) == p.polled {
		return c, false
	}
	s := p.cqRing[abi.RingSlots+int(p.polled%p.cqes)*abi.CQESize:]
	c = cqe{le.Uint64(s[abi.CQEWRID:]), ib.WCStatus(le.Uint32(s[abi.CQEStatus:])),
		ib.WCOpcode(le.Uint32(s[abi.CQEOpcode:])), le.Uint32(s[abi.CQEByteLen:]),
		binary.BigEndian.Uint32(s[abi.CQEImm:]), le.Uint32(s[abi.CQEQPNum:]),
		le.Uint32(s[abi.CQESrcQP:]), ib.WCFlags(le.Uint32(s[abi.CQEFlags:]))}
	p.polled++
	atomic.StoreUint32(word(p.cqRing, abi.RingConsumer), p.polled)
	return c, true
}

func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }

// A queue is a queue pair and the program's end of its rings.
type queue struct {
	*program
	qp       *nic.QP
	tgt      *nic.QP // XRC: qp is the initiator then
	caps     nic.Caps
	sq       []byte
	sqn      uint32 // producer index
	rq       *recvRing
	shared   bool // rq is the program's SRQ
	gone     bool // qp was destroyed
	draining bool // brought to SQD
}

var queueCaps = nic.Caps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 128}

func (p *program) newQueue(depth int, shared bool) (*queue, error) {
	return p.newQueueOf(ib.QPTypeRC, depth, shared)
}

func (p *program) newQueueOf(kind ib.QPType, depth int, shared bool) (*queue, error) {
	q := &queue{program: p, caps: queueCaps, shared: shared}
	q.caps.MaxSendWR = depth
	if err := p.dev.RoundCaps(&q.caps); err != nil {
		return nil, err
	}
	q.sq = nic.NewPage(q.caps.SendRingSize())
	init := nic.QPInit{Type: kind, PD: p.pd, SendCQ: p.cq, RecvCQ: p.cq, Caps: q.caps, SQ: q.sq}
	if shared {
		q.rq, init.SRQ = p.ring, p.srq
	} else {
		q.rq = newRecvRing(q.caps.MaxRecvWR, q.caps.MaxRecvSGE)
		init.RQ = q.rq.mem
	}
	var err error
	q.qp, err = p.ctx.CreateQP(init)
	return q, err
}

// alive reports whether there is a queue pair that posts and polls make sense for.
func (q *queue) alive() bool { return !q.gone && !q.closed }

// connect brings q to RTS, with a peer.
func (q *queue) connect(a nic.QPAttr, peer *queue) (err error) {
	if a.AV.Path, err = q.dev.ResolvePath(context.Background(), &a.AV); err != nil {
		return err
	}
	if q.tgt == nil {
		a.DestQPN = peer.qp.QPN()
		return q.climb(q.qp, a, rcSteps)
	}
	a.DestQPN = peer.tgt.QPN()
	if err := q.climb(q.qp, a, initiatorSteps); err != nil {
		return err
	}
	a.DestQPN = peer.qp.QPN()
	return q.climb(q.tgt, a, targetSteps)
}

// sendRoom returns how many send work requests may be posted.
func (q *queue) sendRoom() int {
	return q.caps.MaxSendWR - int(q.sqn-atomic.LoadUint32(word(q.sq, abi.RingConsumer)))
}

// A recvRing is the program's end of a ring of receives.
type recvRing struct {
	mem   []byte
	slots int
	size  int // of a slot
	n     uint32
}

func newRecvRing(slots, maxSGE int) *recvRing {
	size := abi.RecvSlotSize(maxSGE)
	return &recvRing{mem: nic.NewPage(abi.RingSize(slots, size)), slots: slots, size: size}
}

func (r *recvRing) room() int {
	return r.slots - int(r.n-atomic.LoadUint32(word(r.mem, abi.RingConsumer)))
}

// post writes a send work request to the ring and rings the doorbell.
func (q *queue) post(w *transport.SendWR) {
	size := abi.SendSlotSize(q.caps.MaxSendSGE, q.caps.MaxInline)
	s := q.sq[abi.RingSlots+int(q.sqn)%q.caps.MaxSendWR*size:]
	le.PutUint64(s[abi.SendWRID:], w.ID)
	le.PutUint32(s[abi.SendOpcode:], uint32(w.Opcode))
	le.PutUint32(s[abi.SendFlags:], uint32(w.Flags))
	binary.BigEndian.PutUint32(s[abi.SendImm:], w.Imm)
	if w.Opcode == ib.WRSendWithInv || w.Opcode == ib.WRLocalInv {
		le.PutUint32(s[abi.SendImm:], w.Imm)
	}
	le.PutUint64(s[abi.SendRemoteAddr:], w.RemoteAddr)
	le.PutUint32(s[abi.SendRKey:], w.RKey)
	ah, _ := w.Dest.(uint32)
	le.PutUint32(s[abi.SendAH:], ah)
	q.putSRQ(s, w.RemoteSRQ)
	le.PutUint32(s[abi.SendRemoteQPN:], w.RemoteQPN)
	le.PutUint32(s[abi.SendRemoteQKey:], w.RemoteQKey)
	le.PutUint64(s[abi.SendCompareAdd:], w.CompareAdd)
	le.PutUint64(s[abi.SendSwap:], w.Swap)
	if w.Flags&ib.SendInline != 0 {
		le.PutUint32(s[abi.SendNumSGE:], uint32(copy(s[abi.SendSGEs:size], w.Inline)))
	} else {
		le.PutUint32(s[abi.SendNumSGE:], uint32(len(w.SGEs)))
		putSGEs(s[abi.SendSGEs:], w.SGEs)
	}
	q.sqn++
	atomic.StoreUint32(word(q.sq, abi.RingProducer), q.sqn)
	q.doorbell()
}

func putSGEs(s []byte, sges []transport.SGE) {
	for _, g := range sges {
		le.PutUint64(s[abi.SGEAddr:], g.Addr)
		le.PutUint32(s[abi.SGELength:], g.Length)
		le.PutUint32(s[abi.SGELKey:], g.LKey)
		s = s[abi.SGESize:]
	}
}

// postRecv writes a receive work request.
func (q *queue) postRecv(id uint64, sges []transport.SGE) {
	r := q.rq
	s := r.mem[abi.RingSlots+int(r.n)%r.slots*r.size:]
	le.PutUint64(s[abi.RecvWRID:], id)
	le.PutUint32(s[abi.RecvNumSGE:], uint32(len(sges)))
	putSGEs(s[abi.RecvSGEs:], sges)
	r.n++
	atomic.StoreUint32(word(r.mem, abi.RingProducer), r.n)
	if !q.shared && atomic.LoadUint32(word(r.mem, abi.RecvDoorbell)) != 0 {
		q.doorbell()
	}
}

func (q *queue) doorbell() {
	n := q.qp.Doorbell()
	atomic.OrUint32(word(q.bell, abi.DoorbellBits+n/32*4), 1<<(n%32))
}
