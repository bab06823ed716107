package sim

import (
	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
)

// An XRC pair is two connections, one each way: what an end posts goes from its initiator to the peer's target, and
// from there to the shared receive queue of the peer's program, which each request names.

// openXRC makes the domain and the shared receive queue of a program.
func (p *program) openXRC() (err error) {
	if p.domain, err = p.ctx.OpenXRCD(nic.XRCDKey{}, true, false); err != nil {
		return err
	}
	p.xring = newRecvRing(srqSlots, queueCaps.MaxRecvSGE)
	p.xsrq, err = p.ctx.CreateSRQ(nic.SRQInit{PD: p.pd, MaxWR: srqSlots, MaxSGE: queueCaps.MaxRecvSGE, Ring: p.xring.mem,
		XRCD: p.domain, CQ: p.cq})
	p.xpool.shared = true
	return err
}

// newXRC makes an initiator and a target.
func (p *program) newXRC(depth int) (*queue, error) {
	if p.xsrq == nil {
		if err := p.openXRC(); err != nil {
			return nil, err
		}
	}
	q := &queue{program: p, caps: queueCaps, shared: true, rq: p.xring}
	q.caps.MaxSendWR = depth
	if err := p.dev.RoundCaps(&q.caps); err != nil {
		return nil, err
	}
	q.sq = nic.NewPage(q.caps.SendRingSize())
	var err error
	if q.qp, err = p.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeXRCSend, PD: p.pd, SendCQ: p.cq, Caps: q.caps, SQ: q.sq}); err != nil {
		return nil, err
	}
	q.tgt, err = p.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: p.domain})
	return q, err
}

// receiver is the queue pair that the peer's requests come to.
func (q *queue) receiver() *nic.QP {
	if q.tgt != nil {
		return q.tgt
	}
	return q.qp
}

// has reports whether a completion with this QPN is the queue's.
func (q *queue) has(qpn uint32) bool { return q.qp.QPN() == qpn || q.receiver().QPN() == qpn }

// both calls f for each of the queue's QPs.
func (q *queue) both(f func(*nic.QP) error) error {
	if err := f(q.qp); err != nil || q.tgt == nil {
		return err
	}
	return f(q.tgt)
}

// An attrStep is a state and what is set on the way there.
type attrStep struct {
	state ib.QPState
	mask  ib.QPAttrMask
}

const (
	toInit = ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess
	toRTR  = ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN
	asked  = ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer // of who answers requests
	asking = ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic
)

var (
	rcSteps        = []attrStep{{ib.QPSInit, toInit}, {ib.QPSRTR, toRTR | asked}, {ib.QPSRTS, asking | ib.QPMaskSQPSN}}
	initiatorSteps = []attrStep{{ib.QPSInit, toInit}, {ib.QPSRTR, toRTR}, {ib.QPSRTS, asking | ib.QPMaskSQPSN}}
	targetSteps    = []attrStep{{ib.QPSInit, toInit}, {ib.QPSRTR, toRTR | asked}, {ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN}}
)

// climb brings a queue pair to RTS.
func (q *queue) climb(qp *nic.QP, a nic.QPAttr, steps []attrStep) error {
	for _, s := range steps {
		a.State = s.state
		if err := q.ctx.ModifyQP(qp, &a, ib.QPMaskState|s.mask); err != nil {
			return err
		}
	}
	return nil
}

// srqNumber is what peers name the queue's receives by, 0 where they need no name.
func (q *queue) srqNumber() uint32 {
	if q.tgt == nil {
		return 0
	}
	return q.xsrq.Number()
}

// putSRQ writes the number of the SRQ that an XRC request is for.
func (q *queue) putSRQ(slot []byte, number uint32) {
	if q.tgt != nil {
		le.PutUint32(slot[abi.SendRemoteSRQ:], number)
	}
}
