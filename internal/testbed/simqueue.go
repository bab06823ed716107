package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

var le, be = binary.LittleEndian, binary.BigEndian

func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }

// simCaps is what every simulated queue pair holds.
var simCaps = nic.Caps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 128}

// simCQEntries is the length of a completion queue that the script does not create itself.
const simCQEntries = 128

// recvID tells the receive completions of a queue pair from those of its send queue: its bit is set in
// their work request IDs.
const recvID = 1 << 63

type simCQ struct {
	cq     *nic.CQ
	ring   []byte
	polled uint32
}

type simQP struct {
	qp   *nic.QP
	caps nic.Caps
	sq   []byte
	sqn  uint32 // producer index
	recv *simRecv

	// UD: where datagrams go, as the script's attributes say.
	pd *nic.PD
	av nic.AddressVector
	ah uint32 // the address handle, 0 while there is none
}

// A simRecv is the program's end of a receive ring.
type simRecv struct {
	ring   []byte
	n      uint32 // producer index
	slots  int
	maxSGE int
	bell   func()
}

type simSRQ struct {
	srq  *nic.SRQ
	recv *simRecv
}

// CreateCQ implements NIC.
func (n *simNIC) CreateCQ(name string, entries int) error {
	slots, err := n.dev.CQSlots(entries)
	if err != nil {
		return err
	}
	q := &simCQ{ring: nic.NewPage(abi.RingSize(slots, abi.CQESize))}
	notify := func() { n.noted = append(n.noted, name) }
	if q.cq, err = n.ctx.CreateCQ(nic.CQConfig{Entries: slots, Ring: q.ring, Notify: notify}); err != nil {
		return err
	}
	n.cqs[name] = q
	n.order = append(n.order, q)
	return nil
}

// Arm implements NIC.
func (n *simNIC) Arm(name string, solicited bool) error {
	q := n.cqs[name]
	if q == nil {
		return fmt.Errorf("there is no completion queue %q", name)
	}
	how := uint32(abi.CQArmNext)
	if solicited {
		how = abi.CQArmSolicited
	}
	atomic.StoreUint32(word(q.ring, abi.CQArmed), how)
	return nil
}

// Notices implements NIC.
func (n *simNIC) Notices() ([]string, error) {
	l := n.noted
	n.noted = nil
	return l, n.killed
}

// CreateSRQ implements NIC.
func (n *simNIC) CreateSRQ(name string, o SRQOptions) (uint32, error) {
	pd, err := n.pd("")
	if err != nil {
		return 0, err
	}
	entries, sge := o.Entries, simCaps.MaxRecvSGE
	if err := n.dev.RoundSRQ(&entries, &sge); err != nil {
		return 0, err
	}
	r := &simRecv{ring: nic.NewPage(abi.RingSize(entries, abi.RecvSlotSize(sge))), slots: entries, maxSGE: sge}
	init := nic.SRQInit{PD: pd, MaxWR: entries, MaxSGE: sge, Ring: r.ring, Limit: o.Limit}
	if o.XRCD != "" {
		if init.XRCD = n.xrcds[o.XRCD]; init.XRCD == nil {
			return 0, fmt.Errorf("there is no XRC domain %q", o.XRCD)
		}
		if o.CQ == "" {
			o.CQ = "cq of " + name
		}
		if init.CQ, err = n.cqNamed(o.CQ, "cq of "+name); err != nil {
			return 0, err
		}
	}
	s, err := n.ctx.CreateSRQ(init)
	if err != nil {
		return 0, err
	}
	n.srqs[name] = &simSRQ{s, r}
	return s.Number(), nil
}

// cqNamed finds a completion queue, or creates it where it is somebody's own.
func (n *simNIC) cqNamed(name, own string) (*nic.CQ, error) {
	if name == own && n.cqs[name] == nil {
		if err := n.CreateCQ(name, simCQEntries); err != nil {
			return nil, err
		}
	}
	if n.cqs[name] == nil {
		return nil, fmt.Errorf("there is no completion queue %q", name)
	}
	return n.cqs[name].cq, nil
}

// CreateQP implements NIC.
func (n *simNIC) CreateQP(name string, o QPOptions) (uint32, error) {
	init := nic.QPInit{Type: o.Type, Caps: simCaps, SigAll: o.SigAll}
	if o.MaxSendWR > 0 {
		init.Caps.MaxSendWR = o.MaxSendWR
	}
	if o.MaxRecvWR > 0 {
		init.Caps.MaxRecvWR = o.MaxRecvWR
	}
	q := &simQP{}
	var err error
	if o.Type == ib.QPTypeXRCRecv {
		if init.XRCD = n.xrcds[o.XRCD]; init.XRCD == nil {
			return 0, fmt.Errorf("there is no XRC domain %q", o.XRCD)
		}
	} else if err = n.sendSide(name, o, &init); err != nil {
		return 0, err
	} else if o.Type != ib.QPTypeXRCSend {
		err = n.recvSide(o, &init, q)
	}
	if err != nil {
		return 0, err
	}
	if q.qp, err = n.ctx.CreateQP(init); err != nil {
		return 0, err
	}
	q.pd, q.sq, q.caps = init.PD, init.SQ, init.Caps
	n.qps[name] = q
	return q.qp.QPN(), nil
}

// sendSide fills in what a queue pair that sends is made of.
func (n *simNIC) sendSide(name string, o QPOptions, init *nic.QPInit) (err error) {
	if init.PD, err = n.pd(o.PD); err != nil {
		return err
	}
	if o.CQ == "" {
		o.CQ = "cq of " + name
	}
	if init.SendCQ, err = n.cqNamed(o.CQ, "cq of "+name); err != nil {
		return err
	}
	if err := n.dev.RoundCaps(&init.Caps); err != nil {
		return err
	}
	init.SQ = nic.NewPage(init.Caps.SendRingSize())
	return nil
}

// recvSide fills in what a queue pair that receives is made of.
func (n *simNIC) recvSide(o QPOptions, init *nic.QPInit, q *simQP) error {
	init.RecvCQ = init.SendCQ
	if o.SRQ != "" {
		s := n.srqs[o.SRQ]
		if s == nil {
			return fmt.Errorf("there is no shared receive queue %q", o.SRQ)
		}
		init.SRQ = s.srq
		return nil
	}
	init.RQ = nic.NewPage(init.Caps.RecvRingSize())
	q.recv = &simRecv{ring: init.RQ, slots: init.Caps.MaxRecvWR, maxSGE: init.Caps.MaxRecvSGE, bell: func() { n.ring(q) }}
	return nil
}

// DestroyQP implements NIC.
func (n *simNIC) DestroyQP(name string) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	return n.ctx.DestroyQP(q.qp)
}

// What the library on a program's side refuses.
var (
	errTooManySGEs   = errors.New("too many scatter/gather elements")
	errTooMuchInline = errors.New("more inline data than the queue pair takes")
	errQueueFull     = errors.New("the queue is full")
)

// PostSend implements NIC.
func (n *simNIC) PostSend(name string, w *transport.SendWR) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	if st := q.qp.State(); st < ib.QPSRTS {
		return fmt.Errorf("a send cannot be posted in %v", st)
	}
	switch {
	case len(w.SGEs) > q.caps.MaxSendSGE:
		return errTooManySGEs
	case len(w.Inline) > q.caps.MaxInline:
		return errTooMuchInline
	case q.sqn-atomic.LoadUint32(word(q.sq, abi.RingConsumer)) >= uint32(q.caps.MaxSendWR):
		return errQueueFull
	}
	ah, err := n.handle(q, w)
	if err != nil {
		return err
	}
	size := abi.SendSlotSize(q.caps.MaxSendSGE, q.caps.MaxInline)
	s := q.sq[abi.RingSlots+int(q.sqn)%q.caps.MaxSendWR*size:][:size]
	le.PutUint64(s[abi.SendWRID:], w.ID)
	le.PutUint32(s[abi.SendOpcode:], uint32(w.Opcode))
	le.PutUint32(s[abi.SendFlags:], uint32(w.Flags))
	if w.Opcode == ib.WRSendWithInv || w.Opcode == ib.WRLocalInv {
		le.PutUint32(s[abi.SendImm:], w.Imm) // a key
	} else {
		be.PutUint32(s[abi.SendImm:], w.Imm)
	}
	le.PutUint64(s[abi.SendRemoteAddr:], w.RemoteAddr)
	le.PutUint32(s[abi.SendRKey:], w.RKey)
	le.PutUint32(s[abi.SendAH:], ah)
	le.PutUint32(s[abi.SendRemoteQPN:], w.RemoteQPN)
	le.PutUint32(s[abi.SendRemoteQKey:], w.RemoteQKey)
	le.PutUint64(s[abi.SendCompareAdd:], w.CompareAdd)
	le.PutUint64(s[abi.SendSwap:], w.Swap)
	q.putExtended(s, w)
	if w.Flags&ib.SendInline != 0 {
		le.PutUint32(s[abi.SendNumSGE:], uint32(copy(s[abi.SendSGEs:], w.Inline)))
	} else {
		le.PutUint32(s[abi.SendNumSGE:], uint32(len(w.SGEs)))
		putSGEs(s[abi.SendSGEs:], w.SGEs)
	}
	q.sqn++
	atomic.StoreUint32(word(q.sq, abi.RingProducer), q.sqn)
	n.ring(q)
	return nil
}

// putExtended writes what the operations have that came to verbs later.
func (q *simQP) putExtended(s []byte, w *transport.SendWR) {
	switch w.Opcode {
	case ib.WRBindMW:
		le.PutUint64(s[abi.SendBindAddr:], w.Bind.Addr)
		le.PutUint64(s[abi.SendBindLength:], w.Bind.Length)
		le.PutUint32(s[abi.SendBindLKey:], w.Bind.LKey)
		le.PutUint32(s[abi.SendBindAccess:], uint32(w.Bind.Access))
	case ib.WRFlush:
		le.PutUint32(s[abi.SendFlushLength:], w.Flush.Length)
		s[abi.SendFlushPlacement], s[abi.SendFlushSelectivity] = w.Flush.Placement, w.Flush.Selectivity
	}
	if w.RemoteSRQ != 0 {
		le.PutUint32(s[abi.SendRemoteSRQ:], w.RemoteSRQ)
	}
}

// handle is the address handle that a work request goes with, 0 for none. A UD queue pair has one, which is made when it is
// first needed; one of another protection domain is made for the work request.
func (n *simNIC) handle(q *simQP, w *transport.SendWR) (ah uint32, err error) {
	d, ok := w.Dest.(Destination)
	if !ok {
		return 0, nil
	}
	if d.PD == "" {
		if q.ah == 0 {
			q.ah, err = n.createAH(q.pd, q.av)
		}
		return q.ah, err
	}
	pd, err := n.pd(d.PD)
	if err != nil {
		return 0, err
	}
	return n.createAH(pd, q.av)
}

func (n *simNIC) createAH(pd *nic.PD, av nic.AddressVector) (ah uint32, err error) {
	if av.Path, err = n.dev.ResolvePath(context.Background(), &av); err != nil {
		return 0, err
	}
	n.ahs++
	_, err = n.ctx.CreateAH(pd, n.ahs, av)
	return n.ahs, err
}

// PostRecv implements NIC.
func (n *simNIC) PostRecv(name string, w *transport.RecvWR) error {
	var r *simRecv
	if s := n.srqs[name]; s != nil {
		r = s.recv
	} else {
		q, err := n.queue(name)
		if err != nil {
			return err
		}
		if q.recv == nil {
			return fmt.Errorf("queue pair %q receives from a shared receive queue", name)
		}
		if q.qp.State() == ib.QPSReset {
			return errors.New("a receive cannot be posted in RESET")
		}
		r = q.recv
	}
	return r.post(w)
}

func (r *simRecv) post(w *transport.RecvWR) error {
	if len(w.SGEs) > r.maxSGE {
		return errTooManySGEs
	}
	if r.n-atomic.LoadUint32(word(r.ring, abi.RingConsumer)) >= uint32(r.slots) {
		return errQueueFull
	}
	size := abi.RecvSlotSize(r.maxSGE)
	s := r.ring[abi.RingSlots+int(r.n)%r.slots*size:][:size]
	le.PutUint64(s[abi.RecvWRID:], w.ID|recvID)
	le.PutUint32(s[abi.RecvNumSGE:], uint32(len(w.SGEs)))
	putSGEs(s[abi.RecvSGEs:], w.SGEs)
	r.n++
	atomic.StoreUint32(word(r.ring, abi.RingProducer), r.n)
	if r.bell != nil && atomic.LoadUint32(word(r.ring, abi.RecvDoorbell)) != 0 {
		r.bell()
	}
	return nil
}

func putSGEs(s []byte, sges []transport.SGE) {
	for _, g := range sges {
		le.PutUint64(s[abi.SGEAddr:], g.Addr)
		le.PutUint32(s[abi.SGELength:], g.Length)
		le.PutUint32(s[abi.SGELKey:], g.LKey)
		s = s[abi.SGESize:]
	}
}

func (n *simNIC) ring(q *simQP) {
	bell := q.qp.Doorbell()
	atomic.OrUint32(word(n.bell, abi.DoorbellBits+bell/32*4), 1<<(bell%32))
}

// Completions implements NIC.
func (n *simNIC) Completions() (l []Completion, err error) {
	for _, q := range n.order {
		l = append(l, q.poll(n)...)
	}
	return l, n.killed
}

func (q *simCQ) poll(n *simNIC) (l []Completion) {
	slots := uint32(q.cq.Entries())
	for ; q.polled != atomic.LoadUint32(word(q.ring, abi.RingProducer)); q.polled++ {
		s := q.ring[abi.RingSlots+int(q.polled%slots)*abi.CQESize:]
		id := le.Uint64(s[abi.CQEWRID:])
		c := Completion{QP: n.byNumber(le.Uint32(s[abi.CQEQPNum:])), Recv: id&recvID != 0, ID: id &^ recvID,
			Status: ib.WCStatus(le.Uint32(s[abi.CQEStatus:])), Opcode: ib.WCOpcode(le.Uint32(s[abi.CQEOpcode:])),
			ByteLen: le.Uint32(s[abi.CQEByteLen:]), Imm: be.Uint32(s[abi.CQEImm:]), SrcQP: le.Uint32(s[abi.CQESrcQP:]),
			Flags: ib.WCFlags(le.Uint32(s[abi.CQEFlags:]))}
		if c.Flags&ib.WCWithInv != 0 {
			c.Imm = le.Uint32(s[abi.CQEImm:]) // a key
		}
		l = append(l, c)
	}
	atomic.StoreUint32(word(q.ring, abi.RingConsumer), q.polled)
	return l
}

func (n *simNIC) byNumber(qpn uint32) string {
	for name, q := range n.qps {
		if q.qp.QPN() == qpn {
			return name
		}
	}
	return fmt.Sprintf("QP %#x", qpn)
}

// Query implements NIC.
func (n *simNIC) Query(name string) (nic.QPAttr, error) {
	q, err := n.queue(name)
	if err != nil {
		return nic.QPAttr{}, err
	}
	return n.ctx.QueryQP(q.qp)
}

// Resize implements NIC.
func (n *simNIC) Resize(name string, entries int) error {
	if q := n.cqs[name]; q != nil {
		slots, err := n.dev.CQSlots(entries)
		if err != nil {
			return err
		}
		ring := nic.NewPage(abi.RingSize(slots, abi.CQESize))
		if err := n.ctx.ResizeCQ(q.cq, slots, ring); err != nil {
			return err
		}
		q.ring = ring
		return nil
	}
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("there is no queue %q that could be resized", name)
	}
	sge := q.recv.maxSGE
	if err := n.dev.RoundSRQ(&entries, &sge); err != nil {
		return err
	}
	ring := nic.NewPage(abi.RingSize(entries, abi.RecvSlotSize(sge)))
	if err := n.ctx.ModifySRQ(q.srq, nic.SRQChange{Limit: -1, Ring: ring, MaxWR: entries}); err != nil {
		return err
	}
	q.recv.ring, q.recv.slots = ring, entries
	return nil
}

// Limit implements NIC.
func (n *simNIC) Limit(name string, limit int) error {
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("there is no shared receive queue %q", name)
	}
	return n.ctx.ModifySRQ(q.srq, nic.SRQChange{Limit: limit})
}
