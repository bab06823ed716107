package testbed

import (
	"context"
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// simCaps are the default capacities of simulated queue pairs.
var simCaps = nic.Caps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 128}

// simCQEntries is the size of completion queues that the script does not create itself.
const simCQEntries = 128

// recvID is a bit in the work request IDs of receives. It distinguishes their completions from
// those of the send queue.
const recvID = 1 << 63

// A simQP is a simulated queue pair. On UD, av is the default destination.
type simQP struct {
	*nictest.QP
	pd *nic.PD
	av nic.AddressVector
	ah uint32 // number of the address handle; 0: none yet
}

// CreateCQ implements NIC.
func (n *simNIC) CreateCQ(name string, entries int) error {
	q, err := n.client.CreateCQ(entries)
	if err != nil {
		return err
	}
	q.OnNotify = func() { n.completionEvents = append(n.completionEvents, name) }
	n.cqs[name] = q
	n.order = append(n.order, q)
	return nil
}

// Arm implements NIC.
func (n *simNIC) Arm(name string, solicited bool) error {
	q := n.cqs[name]
	if q == nil {
		return fmt.Errorf("no completion queue %q", name)
	}
	q.Arm(solicited)
	return nil
}

// CompletionEvents implements NIC.
func (n *simNIC) CompletionEvents() ([]string, error) {
	l := n.completionEvents
	n.completionEvents = nil
	return l, n.killed
}

// CreateSRQ implements NIC.
func (n *simNIC) CreateSRQ(name string, o SRQOptions) (uint32, error) {
	pd, err := n.pd("")
	if err != nil {
		return 0, err
	}
	init := nic.SRQInit{PD: pd, MaxWR: o.Entries, MaxSGE: simCaps.MaxRecvSGE, Limit: o.Limit}
	if o.XRCD != "" {
		if init.XRCD = n.xrcds[o.XRCD]; init.XRCD == nil {
			return 0, fmt.Errorf("no XRC domain %q", o.XRCD)
		}
		if o.CQ == "" {
			o.CQ = "cq of " + name
		}
		if init.CQ, err = n.cqNamed(o.CQ, "cq of "+name); err != nil {
			return 0, err
		}
	}
	s, err := n.client.CreateSRQ(init)
	if err != nil {
		return 0, err
	}
	n.srqs[name] = s
	return s.Number(), nil
}

// cqNamed returns the completion queue of a name. Without a name it creates one called own.
func (n *simNIC) cqNamed(name, own string) (*nic.CQ, error) {
	if name == own && n.cqs[name] == nil {
		if err := n.CreateCQ(name, simCQEntries); err != nil {
			return nil, err
		}
	}
	if n.cqs[name] == nil {
		return nil, fmt.Errorf("no completion queue %q", name)
	}
	return n.cqs[name].CQ, nil
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
	var err error
	if o.Type == ib.QPTypeXRCRecv {
		if init.XRCD = n.xrcds[o.XRCD]; init.XRCD == nil {
			return 0, fmt.Errorf("no XRC domain %q", o.XRCD)
		}
	} else if err = n.setSendAttrs(name, o, &init); err != nil {
		return 0, err
	} else if o.Type != ib.QPTypeXRCSend {
		err = n.setRecvAttrs(o, &init)
	}
	if err != nil {
		return 0, err
	}
	q, err := n.client.CreateQP(init)
	if err != nil {
		return 0, err
	}
	n.qps[name] = &simQP{QP: q, pd: init.PD}
	return q.QPN(), nil
}

// setSendAttrs sets the attributes of a queue pair that sends.
func (n *simNIC) setSendAttrs(name string, o QPOptions, init *nic.QPInit) (err error) {
	if init.PD, err = n.pd(o.PD); err != nil {
		return err
	}
	if o.CQ == "" {
		o.CQ = "cq of " + name
	}
	init.SendCQ, err = n.cqNamed(o.CQ, "cq of "+name)
	return err
}

// setRecvAttrs sets the attributes of a queue pair that receives.
func (n *simNIC) setRecvAttrs(o QPOptions, init *nic.QPInit) error {
	init.RecvCQ = init.SendCQ
	if o.SRQ != "" {
		s := n.srqs[o.SRQ]
		if s == nil {
			return fmt.Errorf("no shared receive queue %q", o.SRQ)
		}
		init.SRQ = s.SRQ
	}
	return nil
}

// DestroyQP implements NIC.
func (n *simNIC) DestroyQP(name string) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	return q.Destroy()
}

// Errors of the library of a simulated program.
var (
	errTooManySGEs   = errors.New("too many scatter/gather elements")
	errTooMuchInline = errors.New("more inline data than the queue pair supports")
	errQueueFull     = errors.New("the queue is full")
)

// PostSend implements NIC.
func (n *simNIC) PostSend(name string, w *transport.SendWR) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	if st := q.State(); st < ib.QPSRTS {
		return fmt.Errorf("cannot post a send in state %v", st)
	}
	switch caps := q.Caps(); {
	case len(w.SGEs) > caps.MaxSendSGE:
		return errTooManySGEs
	case len(w.Inline) > caps.MaxInline:
		return errTooMuchInline
	case q.SendRoom() <= 0:
		return errQueueFull
	}
	ah, err := n.addressHandle(q, w)
	if err != nil {
		return err
	}
	r := *w
	r.Dest = ah
	q.PostSend(&r)
	return nil
}

// addressHandle returns the address handle of a work request, 0 for none. A UD queue pair has one,
// created on first use. One of another protection domain is created for each work request.
func (n *simNIC) addressHandle(q *simQP, w *transport.SendWR) (ah uint32, err error) {
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
	if av.Path, err = n.client.Device.ResolvePath(context.Background(), &av); err != nil {
		return 0, err
	}
	n.ahs++
	_, err = n.client.Context.CreateAH(pd, n.ahs, av)
	return n.ahs, err
}

// PostRecv implements NIC.
func (n *simNIC) PostRecv(name string, w *transport.RecvWR) error {
	var r *nictest.RecvQueue
	if s := n.srqs[name]; s != nil {
		r = s.RecvQueue
	} else {
		q, err := n.queue(name)
		if err != nil {
			return err
		}
		if q.Recv == nil {
			return fmt.Errorf("queue pair %q uses a shared receive queue", name)
		}
		if q.State() == ib.QPSReset {
			return errors.New("cannot post a receive in state RESET")
		}
		r = q.Recv
	}
	if len(w.SGEs) > r.MaxSGE() {
		return errTooManySGEs
	}
	if r.Room() <= 0 {
		return errQueueFull
	}
	r.PostRecv(w.ID|recvID, w.SGEs)
	return nil
}

// Completions implements NIC.
func (n *simNIC) Completions() (l []Completion, err error) {
	for _, q := range n.order {
		for _, c := range q.PollAll() {
			l = append(l, Completion{QP: n.byNumber(c.QPN), Recv: c.WRID&recvID != 0, ID: c.WRID &^ recvID, Status: c.Status,
				Opcode: c.Opcode, ByteLen: c.ByteLen, Imm: c.Imm, SrcQP: c.SrcQP, Flags: c.Flags})
		}
	}
	return l, n.killed
}

func (n *simNIC) byNumber(qpn uint32) string {
	for name, q := range n.qps {
		if q.QPN() == qpn {
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
	return q.Query()
}

// Resize implements NIC.
func (n *simNIC) Resize(name string, entries int) error {
	if q := n.cqs[name]; q != nil {
		return q.Resize(entries)
	}
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("no queue %q to resize", name)
	}
	return q.Resize(entries, -1)
}

// Limit implements NIC.
func (n *simNIC) Limit(name string, limit int) error {
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("no shared receive queue %q", name)
	}
	return n.client.Context.ModifySRQ(q.SRQ, nic.SRQChange{Limit: limit})
}
