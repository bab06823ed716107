package nictest

import (
	"context"
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A QP is a queue pair and the client's side of its rings.
type QP struct {
	*nic.QP
	SendRing []byte     // nil: XRC target
	Recv     *RecvQueue // nil: the queue pair has an SRQ or is of XRC

	client   *Client
	kind     ib.QPType
	maxWR    int // slots of the send ring
	slotSize int // bytes of a slot
	producer uint32
}

// CreateQP creates a queue pair with at least the capacities in o, and with rings of its own.
func (c *Client) CreateQP(o nic.QPInit) (*QP, error) {
	q := &QP{client: c, kind: o.Type}
	if o.Type != ib.QPTypeXRCRecv {
		if err := c.Device.RoundCaps(&o.Caps); err != nil {
			return nil, err
		}
		q.maxWR, q.slotSize = o.Caps.MaxSendWR, abi.SendSlotSize(o.Caps.MaxSendSGE, o.Caps.MaxInline)
		q.SendRing = nic.NewPage(o.Caps.SendRingSize())
		o.SQ = q.SendRing
		if o.SRQ == nil && o.Type != ib.QPTypeXRCSend {
			q.Recv = newRecvQueue(o.Caps.MaxRecvWR, o.Caps.MaxRecvSGE)
			q.Recv.doorbell = q.RingDoorbell
			o.RQ = q.Recv.Ring
		}
	}
	var err error
	q.QP, err = c.Context.CreateQP(o)
	return q, err
}

// Modify changes attributes: nic.Context.ModifyQP.
func (q *QP) Modify(a *nic.QPAttr, mask ib.QPAttrMask) error {
	return q.client.Context.ModifyQP(q.QP, a, mask)
}

// SetState changes only the state.
func (q *QP) SetState(s ib.QPState) error {
	return q.Modify(&nic.QPAttr{QPAttr: ib.QPAttr{State: s}}, ib.QPMaskState)
}

// Query returns the attributes: nic.Context.QueryQP.
func (q *QP) Query() (nic.QPAttr, error) { return q.client.Context.QueryQP(q.QP) }

// Destroy destroys the queue pair: nic.Context.DestroyQP.
func (q *QP) Destroy() error { return q.client.Context.DestroyQP(q.QP) }

// Attributes that ibv_modify_qp requires on the way to a state, besides the state.
const (
	InitMask = ib.QPMaskPKeyIndex | ib.QPMaskPort

	connectedRTR = ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN
	responderRTR = ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer
	requesterRTS = ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic
)

// A step is a state on the way to RTS and the attributes that are set there.
type step struct {
	state ib.QPState
	mask  ib.QPAttrMask
}

var steps = map[ib.QPType][]step{
	ib.QPTypeRC: {
		{ib.QPSInit, InitMask | ib.QPMaskAccess},
		{ib.QPSRTR, connectedRTR | responderRTR},
		{ib.QPSRTS, requesterRTS | ib.QPMaskSQPSN},
	},
	ib.QPTypeUC: {
		{ib.QPSInit, InitMask | ib.QPMaskAccess},
		{ib.QPSRTR, connectedRTR},
		{ib.QPSRTS, ib.QPMaskSQPSN},
	},
	ib.QPTypeUD: {
		{ib.QPSInit, InitMask | ib.QPMaskQKey},
		{ib.QPSRTR, 0},
		{ib.QPSRTS, ib.QPMaskSQPSN},
	},
	ib.QPTypeXRCSend: {
		{ib.QPSInit, InitMask | ib.QPMaskAccess},
		{ib.QPSRTR, connectedRTR},
		{ib.QPSRTS, requesterRTS | ib.QPMaskSQPSN},
	},
	ib.QPTypeXRCRecv: {
		{ib.QPSInit, InitMask | ib.QPMaskAccess},
		{ib.QPSRTR, connectedRTR | responderRTR},
		{ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN},
	},
}

// Connect takes a queue pair from RESET to RTS with the attributes of a that its type requires. It
// resolves the address vector's path if that is nil.
func (q *QP) Connect(a nic.QPAttr) error {
	if q.kind != ib.QPTypeUD && a.AV.Path == nil {
		var err error
		if a.AV.Path, err = q.client.Device.ResolvePath(context.Background(), &a.AV); err != nil {
			return err
		}
	}
	for _, s := range steps[q.kind] {
		a.State = s.state
		if err := q.Modify(&a, ib.QPMaskState|s.mask); err != nil {
			return err
		}
	}
	return nil
}

// SendRoom returns how many more send work requests may be posted.
func (q *QP) SendRoom() int {
	return q.maxWR - int(q.producer-atomic.LoadUint32(Word(q.SendRing, abi.RingConsumer)))
}

// PutSend writes a work request to the next slot of the send ring. The NIC sees it after Publish.
// Dest is nil or the number of an address handle, a uint32.
func (q *QP) PutSend(w *transport.SendWR) {
	slot := q.SendRing[abi.RingSlots+int(q.producer)%q.maxWR*q.slotSize:][:q.slotSize]
	e := abi.SendWQE{
		WRID:       w.ID,
		Opcode:     uint32(w.Opcode),
		Flags:      uint32(w.Flags),
		RemoteAddr: w.RemoteAddr,
		RKey:       w.RKey,
		CompareAdd: w.CompareAdd,
		Swap:       w.Swap,
		RemoteQPN:  w.RemoteQPN,
		RemoteQKey: w.RemoteQKey,
	}
	if w.Opcode == ib.WRSendWithInv || w.Opcode == ib.WRLocalInv {
		e.Imm = w.Imm
	} else {
		e.SetImmediate(w.Imm)
	}
	e.AHOrSRQ, _ = w.Dest.(uint32)
	if q.kind == ib.QPTypeXRCSend {
		e.AHOrSRQ = w.RemoteSRQ
	}
	switch w.Opcode {
	case ib.WRBindMW:
		b := e.Bind()
		b.LKey, b.Access, b.Addr, b.Length = w.Bind.LKey, uint32(w.Bind.Access), w.Bind.Addr, w.Bind.Length
	case ib.WRFlush:
		f := e.Flush()
		f.Length, f.Placement, f.Selectivity = w.Flush.Length, uint8(w.Flush.Placement), uint8(w.Flush.Selectivity)
	}
	if w.Flags&ib.SendInline != 0 {
		e.NumSGE = abi.PutInline(slot, w.Inline)
	} else {
		e.NumSGE = uint32(len(w.SGEs))
		abi.PutSGEs(slot[abi.SendWQESize:], w.SGEs)
	}
	*abi.In[abi.SendWQE](slot) = e
	q.producer++
}

// Publish makes what PutSend has written visible to the NIC and rings the doorbell.
func (q *QP) Publish() {
	atomic.StoreUint32(Word(q.SendRing, abi.RingProducer), q.producer)
	q.RingDoorbell()
}

// RingDoorbell sets the queue pair's bit in the doorbell page.
func (q *QP) RingDoorbell() { q.client.ring(q.QP) }

// PostSend posts a work request: PutSend and Publish.
func (q *QP) PostSend(w *transport.SendWR) {
	q.PutSend(w)
	q.Publish()
}
