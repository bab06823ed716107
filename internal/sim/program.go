package sim

import (
	"encoding/binary"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

var le = binary.LittleEndian

const everyAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessMWBind

// A program is a verbs program on a NIC: its context, memory and completion queue.
type program struct {
	*nictest.Client
	pd *nic.PD
	cq *nictest.CQ

	srq  *nictest.SRQ // nil: none
	pool recvPool     // receives posted to srq

	domain *nic.XRCD // nil: not used yet
	xsrq   *nictest.SRQ
	xpool  recvPool

	user         uint32 // ID of its user
	mem          []byte
	mr           *nic.MR
	key          uint32 // L_Key and R_Key of mr, also after mr was deregistered
	deregistered bool   // mr was deregistered
	expected     []byte // what mem must contain
	unchecked    []span // where mem may contain anything: targets of work that failed
	overwritten  []span // sent buffers that the program has used again: see buffers.go
	next         int    // first byte of mem that is not allocated

	pausedUntil int64           // no polling before this time
	polled      []nictest.WC    // not handled yet: see events.go
	drained     map[uint32]bool // queue pairs whose SQ_DRAINED event came
	lastWQE     map[uint32]bool // or their LAST_WQE_REACHED
	overflow    bool            // cq has overrun
	windows     []*nic.MW
	closed      bool
	killed      error
}

// A span is a range of memory.
type span struct{ off, n int }

const (
	cqEntries = 2048
	smallCQ   = 32
	srqSlots  = 256
)

func (sim *simulation) newProgram(d *nic.Device) (*program, error) {
	p := &program{mem: nic.NewPage(sim.profile.memory()), next: sim.profile.Source, drained: map[uint32]bool{}, lastWQE: map[uint32]bool{}}
	cqes := cqEntries
	if sim.profile.SmallCQ {
		cqes = smallCQ
	}
	for i := 0; i < len(p.mem); i += 8 {
		v := uint64(0xa5a5a5a5a5a5a5a5)
		if i < sim.profile.Source {
			v = sim.rnd.Uint64()
		}
		le.PutUint64(p.mem[i:], v)
	}
	p.expected = append([]byte(nil), p.mem...)
	return p, p.open(sim, d, cqes, sim.profile.SharedRecv)
}

// open creates the program's objects on a device.
func (p *program) open(sim *simulation, d *nic.Device, cqes int, shared bool) (err error) {
	mem, err := sim.memoryOf(p, d)
	if err != nil {
		return err
	}
	if p.Client, err = nictest.Open(d, nic.ContextOptions{Events: p, Comm: "sim", UID: p.user}); err != nil {
		return err
	}
	if p.pd, err = p.Context.AllocPD(); err != nil {
		return err
	}
	if p.cq, err = p.CreateCQ(cqes); err != nil {
		return err
	}
	if shared {
		if p.srq, err = p.CreateSRQ(nic.SRQInit{PD: p.pd, MaxWR: srqSlots, MaxSGE: queueCaps.MaxRecvSGE}); err != nil {
			return err
		}
		p.pool.shared = true
	}
	if p.mr, err = p.Context.RegMR(p.pd, mem, 0, uint64(len(p.mem)), everyAccess); err != nil {
		return err
	}
	p.key = p.mr.LKey()
	return nil
}

// alloc allocates n bytes of memory, followed by a gap that must not change.
func (p *program) alloc(n int) (span, bool) {
	s := span{(p.next + 7) &^ 7, n}
	if s.off+n+8 > len(p.mem) {
		return span{}, false
	}
	p.next = s.off + n + 8
	return s, true
}

// A queue is a queue pair, or with XRC an initiator and a target.
type queue struct {
	*program
	*nictest.QP
	tgt      *nictest.QP // XRC target; QP is the initiator then
	recv     receives
	shared   bool // recv is an SRQ of the program
	gone     bool // the queue pair was destroyed
	draining bool // in SQD, or on the way there
}

// receives is a receive queue or an SRQ.
type receives interface {
	PostRecv(id uint64, sges []transport.SGE)
	Room() int
}

var queueCaps = nic.Caps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 128}

func (p *program) newQueue(depth int, shared bool) (*queue, error) {
	return p.newQueueOf(ib.QPTypeRC, depth, shared)
}

func (p *program) newQueueOf(kind ib.QPType, depth int, shared bool) (*queue, error) {
	q := &queue{program: p, shared: shared}
	init := nic.QPInit{Type: kind, PD: p.pd, SendCQ: p.cq.CQ, RecvCQ: p.cq.CQ, Caps: queueCaps}
	init.Caps.MaxSendWR = depth
	if shared {
		q.recv, init.SRQ = p.srq, p.srq.SRQ
	}
	var err error
	if q.QP, err = p.CreateQP(init); err != nil {
		return nil, err
	}
	if !shared {
		q.recv = q.QP.Recv
	}
	return q, nil
}

// alive reports whether the queue pair exists.
func (q *queue) alive() bool { return !q.gone && !q.closed }

// connect takes q to RTS.
func (q *queue) connect(a nic.QPAttr, peer *queue) error {
	if q.tgt == nil {
		a.DestQPN = peer.QPN()
		return q.Connect(a)
	}
	a.DestQPN = peer.tgt.QPN()
	if err := q.Connect(a); err != nil {
		return err
	}
	a.DestQPN = peer.QPN()
	return q.tgt.Connect(a)
}
