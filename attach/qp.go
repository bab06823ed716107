package attach

import (
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/nic"
)

func (c *conn) createQP(v *abi.CreateQPRequest, _ *control.Packet) (reply, error) {
	init, err := c.newQPInit(v)
	if err != nil {
		return reply{}, err
	}
	q := &qp{}
	r, fds, err := c.createRings(q, &init)
	if err != nil {
		q.release()
		return reply{}, err
	}
	c.device.engine.Do(func() {
		if q.nic, err = c.nic.CreateQP(init); err == nil {
			r.Handle, r.QPN, r.Doorbell = c.objects.add(q), q.nic.QPN(), uint32(q.nic.Doorbell())
			c.events.handles[q.nic] = r.Handle
		}
	})
	if err != nil {
		q.release()
		for _, fd := range fds {
			unix.Close(fd)
		}
		return reply{}, err
	}
	return reply{body: []any{r}, fds: fds, closeAfter: fds}, nil
}

// createRings allocates the rings that a queue pair of its type has.
func (c *conn) createRings(q *qp, init *nic.QPInit) (r abi.CreateQPReply, fds []int, err error) {
	if init.Type == ib.QPTypeXRCRecv {
		return r, nil, nil
	}
	if err := c.device.RoundCaps(&init.Caps); err != nil {
		return r, nil, err
	}
	caps := init.Caps
	r = abi.CreateQPReply{
		SendSlots: uint32(caps.MaxSendWR), SendSlotSize: uint32(abi.SendSlotSize(caps.MaxSendSGE, caps.MaxInline)),
		Cap: capsOut(caps),
	}
	sendSize, recvSize := caps.SendRingSize(), 0
	switch {
	case init.Type == ib.QPTypeXRCSend:
		r.Cap.MaxRecvWR, r.Cap.MaxRecvSGE = 0, 0
	case init.SRQ == nil:
		recvSize = caps.RecvRingSize()
		r.RecvSlots, r.RecvSlotSize = uint32(caps.MaxRecvWR), uint32(abi.RecvSlotSize(caps.MaxRecvSGE))
	}
	if q.rings, err = c.rings.newRings(sendSize + recvSize); err != nil {
		return r, nil, err
	}
	fd, err := q.rings.descriptor()
	if err != nil {
		return r, nil, err
	}
	init.SQ = c.rings.begin(q.rings.ring(0, sendSize))
	r.Chunk, r.SendRing = q.rings.number(), q.rings.offset()
	if recvSize > 0 {
		init.RQ = c.rings.begin(q.rings.ring(sendSize, recvSize))
		r.RecvRing = r.SendRing + uint32(sendSize)
	}
	return r, []int{fd}, nil
}

func (c *conn) newQPInit(v *abi.CreateQPRequest) (init nic.QPInit, err error) {
	init = nic.QPInit{Type: ib.QPType(v.Type), SigAll: v.SigAll != 0, SendOps: ib.SendOps(v.SendOps), Caps: capsIn(v.Cap)}
	if init.Type == ib.QPTypeXRCSend || init.Type == ib.QPTypeXRCRecv {
		return c.newXRCInit(v, init)
	}
	if v.SRQ != 0 {
		s, err := lookUp[*srq](&c.objects, v.SRQ)
		if err != nil {
			return init, err
		}
		init.SRQ, init.Caps.MaxRecvWR, init.Caps.MaxRecvSGE = s.nic, 0, 0
	}
	if init.PD, err = lookUp[*nic.PD](&c.objects, v.PD); err != nil {
		return init, err
	}
	send, err := lookUp[*cq](&c.objects, v.SendCQ)
	if err != nil {
		return init, err
	}
	recv, err := lookUp[*cq](&c.objects, v.RecvCQ)
	if err != nil {
		return init, err
	}
	init.SendCQ, init.RecvCQ = send.nic, recv.nic
	return init, nil
}

func capsIn(c abi.QPCap) nic.Caps {
	return nic.Caps{MaxSendWR: count(c.MaxSendWR), MaxRecvWR: count(c.MaxRecvWR), MaxSendSGE: count(c.MaxSendSGE),
		MaxRecvSGE: count(c.MaxRecvSGE), MaxInline: count(c.MaxInlineData)}
}

func capsOut(c nic.Caps) abi.QPCap {
	return abi.QPCap{MaxSendWR: uint32(c.MaxSendWR), MaxRecvWR: uint32(c.MaxRecvWR), MaxSendSGE: uint32(c.MaxSendSGE),
		MaxRecvSGE: uint32(c.MaxRecvSGE), MaxInlineData: uint32(c.MaxInline)}
}

// A control operation on a queue pair waits until what was posted before it has been transmitted:
// for up to serveSteps steps of the engine, and for up to serveSteps times heldWait if that takes
// the client's memory so long.
const (
	serveSteps = 32
	heldWait   = time.Millisecond
)

// afterPosted calls f on the engine, after that has transmitted what is posted to a queue pair.
func (c *conn) afterPosted(q *nic.QP, f func()) {
	for n, done := 0, false; !done; n++ {
		var held bool
		c.device.engine.Do(func() {
			again := false
			if n < serveSteps {
				again, held = q.Serve()
			}
			if done = !again; done {
				f()
			}
		})
		if held && !done {
			time.Sleep(heldWait)
		}
	}
}

func (c *conn) destroyQP(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	q, err := lookUp[*qp](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	c.afterPosted(q.nic, func() {
		if err = c.nic.DestroyQP(q.nic); err == nil {
			c.events.forget(q.nic)
		}
	})
	if err == nil {
		c.objects.remove(v.Handle)
		q.release()
	}
	return reply{}, err
}

// modifyQP resolves the next hop first if there is a new address vector.
func (c *conn) modifyQP(v *abi.ModifyQPRequest) (func() (reply, error), error) {
	attr, mask := attrIn(&v.Attr), ib.QPAttrMask(v.Mask)
	if mask&ib.QPMaskAV != 0 {
		qpn := uint32(0)
		if mask&ib.QPMaskDestQPN != 0 {
			qpn = attr.DestQPN
		}
		if err := c.resolve(&attr.AV, qpn); err != nil {
			return nil, err
		}
	}
	return func() (reply, error) {
		q, err := lookUp[*qp](&c.objects, v.Handle)
		if err != nil {
			return reply{}, err
		}
		modify := func() { err = c.nic.ModifyQP(q.nic, &attr, mask) }
		if mask&ib.QPMaskState != 0 {
			c.afterPosted(q.nic, modify)
		} else {
			c.device.engine.Do(modify)
		}
		return reply{}, err
	}, nil
}

func (c *conn) queryQP(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	q, err := lookUp[*qp](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	var a nic.QPAttr
	c.device.engine.Do(func() { a, err = c.nic.QueryQP(q.nic) })
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{abi.QueryQPReply{Attr: attrOut(&a)}}}, nil
}

func attrIn(a *abi.QPAttr) nic.QPAttr {
	return nic.QPAttr{
		QPAttr: ib.QPAttr{
			State: ib.QPState(a.State), CurState: ib.QPState(a.CurState),
			PathMTU: ib.MTU(a.PathMTU).Bytes(), QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPN,
			Access: ib.Access(a.AccessFlags), MaxRDAtomic: a.MaxRdAtomic, MaxDestRDAtomic: a.MaxDestRdAtomic,
			MinRNRTimer: a.MinRNRTimer, Timeout: a.Timeout, RetryCount: a.RetryCnt, RNRRetry: a.RNRRetry,
			EnSQDNotify: a.EnSQDAsyncNotify != 0,
		},
		AV: addressVectorIn(&a.AH), Port: int(a.PortNum), PKeyIndex: int(a.PKeyIndex), RateLimit: a.RateLimit,
	}
}

func attrOut(a *nic.QPAttr) abi.QPAttr {
	r := transportAttrOut(&a.QPAttr)
	r.Cap, r.PKeyIndex, r.PortNum, r.RateLimit = capsOut(a.Caps), uint16(a.PKeyIndex), uint8(a.Port), a.RateLimit
	r.AH = abi.AHAttr{
		DGID: a.AV.DGID, FlowLabel: a.AV.FlowLabel, DLID: a.AV.DLID, SGIDIndex: uint8(a.AV.SGIDIndex),
		HopLimit: a.AV.HopLimit, TrafficClass: a.AV.TClass, SL: a.AV.SL, StaticRate: a.AV.StaticRate, IsGlobal: 1, PortNum: uint8(a.AV.Port),
	}
	return r
}

// transportAttrOut converts the attributes of the transport.
func transportAttrOut(a *ib.QPAttr) abi.QPAttr {
	return abi.QPAttr{
		State: uint32(a.State), CurState: uint32(a.CurState), PathMTU: mtuCode(a.PathMTU), QKey: a.QKey,
		RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPN, AccessFlags: uint32(a.Access), SQDraining: flag(a.Draining),
		MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic, MinRNRTimer: a.MinRNRTimer,
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RNRRetry: a.RNRRetry,
	}
}
