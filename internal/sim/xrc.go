package sim

import (
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
)

// An XRC pair is two connections, one in each direction: requests of an endpoint go from its
// initiator to the peer's target, and from there to the SRQ of the peer's program, which each
// request names.

// openXRC creates the XRC domain and SRQ of a program.
func (p *program) openXRC() (err error) {
	if p.domain, err = p.Context.OpenXRCD(nic.XRCDKey{}, true, false); err != nil {
		return err
	}
	p.xsrq, err = p.CreateSRQ(nic.SRQInit{PD: p.pd, MaxWR: srqSlots, MaxSGE: queueCaps.MaxRecvSGE, XRCD: p.domain, CQ: p.cq.CQ})
	p.xpool.shared = true
	return err
}

// newXRC creates an initiator and a target.
func (p *program) newXRC(depth int) (*queue, error) {
	if p.xsrq == nil {
		if err := p.openXRC(); err != nil {
			return nil, err
		}
	}
	q := &queue{program: p, shared: true, recv: p.xsrq}
	init := nic.QPInit{Type: ib.QPTypeXRCSend, PD: p.pd, SendCQ: p.cq.CQ, Caps: queueCaps}
	init.Caps.MaxSendWR = depth
	var err error
	if q.QP, err = p.CreateQP(init); err != nil {
		return nil, err
	}
	q.tgt, err = p.CreateQP(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: p.domain})
	return q, err
}

// receiver returns the queue pair that receives the peer's requests.
func (q *queue) receiver() *nictest.QP {
	if q.tgt != nil {
		return q.tgt
	}
	return q.QP
}

// has reports whether the queue has a QPN.
func (q *queue) has(qpn uint32) bool { return q.QPN() == qpn || q.receiver().QPN() == qpn }

// both calls f for each of the queue's QPs.
func (q *queue) both(f func(*nictest.QP) error) error {
	if err := f(q.QP); err != nil || q.tgt == nil {
		return err
	}
	return f(q.tgt)
}

// srqNumber returns the SRQ number for requests to the queue, 0 if it is not of XRC.
func (q *queue) srqNumber() uint32 {
	if q.tgt == nil {
		return 0
	}
	return q.xsrq.Number()
}
