package cm

import "softroce/internal/ib"

// RequestSIDR sends a SIDR_REQ and sets its RequestID. The reply is a ConnSIDRReply event.
func (a *Agent) RequestSIDR(now int64, p Port, r Route, q *SIDRREQ) (*Conn, error) {
	c, err := a.newConn(p, r)
	if err != nil {
		return nil, err
	}
	q.RequestID = c.localID
	c.active, c.state, c.limit, c.tid = true, StateSIDRSent, MaxRetries, uint64(AttrSIDRREQ)<<32|uint64(c.localID)
	c.send(now, q, ib.TimeCode(ResponseTime))
	return c, nil
}

// ReplySIDR replies to a SIDR_REQ and sets RequestID. A repeated request gets the same reply for
// some time.
func (c *Conn) ReplySIDR(now int64, p *SIDRREP) error {
	if c.state != StateSIDRReceived {
		return ErrState
	}
	p.RequestID = c.remoteID
	c.sendOnce(p)
	c.state = StateSIDRAnswered
	a := c.agent
	a.timers.set(c, now+2*ib.TimeCode(ResponseTime))
	a.sidrAnswered = append(a.sidrAnswered, c)
	for len(a.sidrAnswered) > 0 && (len(a.sidrAnswered) > maxSIDRAnswered || a.sidrAnswered[0].state == StateClosed) {
		a.sidrAnswered[0].remove()
		a.sidrAnswered[0] = nil
		a.sidrAnswered = a.sidrAnswered[1:]
	}
	return nil
}

// sidrReq handles a SIDR_REQ.
func (in *incoming) sidrReq(q *SIDRREQ) {
	a := in.agent
	key := in.sender(q.RequestID)
	if c := a.sidrRequests[key]; c != nil {
		if c.state == StateSIDRAnswered {
			c.resend()
		} else {
			c.awaitReply(in.now)
		}
		return
	}
	if a.Len() >= maxConns {
		return
	}
	c := &Conn{agent: a, port: in.port, route: in.back, timer: -1, state: StateSIDRReceived, remoteID: q.RequestID, tid: in.header.TID}
	a.sidrRequests[key] = c
	c.awaitReply(in.now)
	switch status, ignore := a.handler.Lookup(c, q); {
	case ignore:
		c.remove()
	case status != SIDRSuccess:
		in.reply(&SIDRREP{RequestID: q.RequestID, Status: status, ServiceID: q.ServiceID})
		c.remove()
	}
}

// awaitReply sets how long the sender of a SIDR_REQ waits from now.
func (c *Conn) awaitReply(now int64) {
	c.agent.timers.set(c, now+(1+MaxRetries)*ib.TimeCode(ResponseTime))
}

// sidrRep handles a SIDR_REP.
func (in *incoming) sidrRep(p *SIDRREP) {
	c := in.agent.conns[p.RequestID]
	if c == nil || c.state != StateSIDRSent || !in.fromPeer(c) {
		return
	}
	c.remove()
	c.notify(&ConnEvent{Kind: ConnSIDRReply, SIDR: p, Private: p.Private[:]})
}
