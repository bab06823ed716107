package cm

import (
	"encoding/binary"

	"softroce/internal/ib"
)

// req handles a REQ: a duplicate, one that contradicts a connection, or a new one.
func (in *incoming) req(q *REQ) {
	a := in.agent
	if c := a.peers[in.sender(q.LocalID)]; c != nil && c.guid == q.LocalGUID {
		in.duplicateREQ(c, q)
		return
	}
	if old := in.connected(q.LocalGUID, q.LocalQPN); old != nil {
		// The peer no longer has the connection of its queue pair (12.4.1).
		in.reject(0, q.LocalID, AboutREQ, RejectStale)
		old.stale(in.now)
		return
	}
	c, err := a.newConn(in.port, in.back)
	if err != nil {
		in.reject(0, q.LocalID, AboutREQ, RejectNoResources)
		return
	}
	c.setPeer(q.LocalID, q.LocalGUID, q.LocalQPN)
	c.state, c.tid = StateREQReceived, in.header.TID
	c.life, c.limit = q.Primary.ACKTimeout, int(q.MaxCMRetries)
	c.interval = ib.TimeCode(min(q.LocalResponseTime, serviceTime)) + 2*ib.TimeCode(PacketLife)
	c.life = min(c.life, ResponseTime)
	switch why := a.handler.Request(c, q); why {
	case 0:
		c.sends = true
		if c.state == StateREQReceived {
			a.timers.set(c, in.now+senderTimeout(q))
		}
	case NoReply:
		c.remove()
	default:
		c.remove()
		in.reject(0, q.LocalID, AboutREQ, why)
	}
}

// connected returns the connection that this side has with a queue pair of the sender, nil if there
// is none.
func (in *incoming) connected(guid uint64, qpn uint32) *Conn {
	c := in.agent.peerQP[in.sender(qpn)]
	if c == nil || qpn == 0 || c.guid != guid || c.state == StateTimewait {
		return nil
	}
	return c
}

// senderTimeout returns how long the sender of a REQ retransmits it before it gives up.
func senderTimeout(q *REQ) int64 {
	return int64(1+q.MaxCMRetries) * (ib.TimeCode(min(q.RemoteResponseTime, serviceTime)) + 2*ib.TimeCode(PacketLife))
}

// duplicateREQ repeats the reply to a REQ. An MRA makes its sender wait longer.
func (in *incoming) duplicateREQ(c *Conn, q *REQ) {
	switch {
	case c.state == StateREQReceived && c.sends:
		in.reply(&MRA{LocalID: c.localID, RemoteID: c.remoteID, About: AboutREQ, ServiceTimeout: serviceTime})
		in.agent.timers.set(c, in.now+ib.TimeCode(serviceTime)+senderTimeout(q))
	case c.state == StateREPSent:
		c.resend()
	case c.state == StateTimewait:
		in.reject(0, q.LocalID, AboutREQ, RejectStale)
	}
}

// stale ends a connection that the peer no longer has.
func (c *Conn) stale(now int64) {
	switch c.state {
	case StateEstablished:
		c.timewait(now)
		c.notify(&ConnEvent{Kind: ConnDisconnected})
	case StateREPSent, StateREQReceived:
		c.remove()
		c.notify(&ConnEvent{Kind: ConnRejected, Reason: RejectStale})
	}
}

// rep handles a REP.
func (in *incoming) rep(p *REP) {
	c := in.find(p.RemoteID, p.LocalID)
	switch {
	case c == nil:
		in.reject(p.RemoteID, p.LocalID, AboutREP, RejectInvalidID)
	case c.state == StateREQSent:
		in.firstREP(c, p)
	case c.state == StateEstablished && c.active:
		// The RTU was lost.
		Put(&c.mad, c.tid, 0, &RTU{LocalID: c.localID, RemoteID: c.remoteID})
		c.resend()
	case c.state == StateREPReceived:
		in.reply(&MRA{LocalID: c.localID, RemoteID: c.remoteID, About: AboutREP, ServiceTimeout: serviceTime})
	}
}

func (in *incoming) firstREP(c *Conn, p *REP) {
	if old := in.connected(p.LocalGUID, p.LocalQPN); old != nil {
		in.reject(p.RemoteID, p.LocalID, AboutREP, RejectStale)
		c.remove()
		old.stale(in.now)
		c.notify(&ConnEvent{Kind: ConnRejected, Reason: RejectStale})
		return
	}
	c.setPeer(p.LocalID, p.LocalGUID, p.LocalQPN)
	c.state, c.sends = StateREPReceived, true
	in.agent.timers.set(c, 0)
	c.notify(&ConnEvent{Kind: ConnReplied, REP: p, Private: p.Private[:]})
}

// rtu handles an RTU.
func (in *incoming) rtu(m *RTU) {
	if c := in.find(m.RemoteID, m.LocalID); c != nil && c.state == StateREPSent {
		c.established()
	}
}

// mra handles an MRA: the peer has received the message and needs time to reply.
func (in *incoming) mra(m *MRA) {
	c := in.find(m.RemoteID, m.LocalID)
	if c == nil || !(c.state == StateREQSent && m.About == AboutREQ || c.state == StateREPSent && m.About == AboutREP) {
		return
	}
	in.agent.timers.set(c, in.now+ib.TimeCode(min(m.ServiceTimeout, serviceTime))+2*ib.TimeCode(PacketLife))
}

// rej handles a REJ.
func (in *incoming) rej(m *REJ) {
	c := in.rejected(m)
	if c == nil {
		return
	}
	switch c.state {
	case StateREQSent, StateREQReceived, StateREPSent, StateREPReceived:
		c.remove()
	case StateEstablished, StateDREQSent:
		c.timewait(in.now)
	default:
		return
	}
	c.notify(&ConnEvent{Kind: ConnRejected, Reason: m.Reason, Private: m.Private[:]})
}

// rejected finds the connection that a REJ rejects.
func (in *incoming) rejected(m *REJ) *Conn {
	if m.Reason == RejectTimeout && m.RemoteID == 0 && m.InfoLength >= 8 {
		// The sender of a REQ gives up. It does not know this side's communication ID.
		c := in.agent.peers[in.sender(m.LocalID)]
		if c == nil || c.guid != binary.BigEndian.Uint64(m.Info[:]) {
			return nil
		}
		return c
	}
	c := in.agent.conns[m.RemoteID]
	if c == nil || !in.fromPeer(c) {
		return nil
	}
	if c.remoteID != m.LocalID && !(c.remoteID == 0 || m.LocalID == 0) {
		return nil
	}
	return c
}

// dreq handles a DREQ.
func (in *incoming) dreq(m *DREQ) {
	c := in.find(m.RemoteID, m.LocalID)
	switch {
	case c != nil && c.remoteID != 0 && m.RemoteQPN != c.localQPN:
		return
	case c == nil || c.remoteID == 0:
		// There is no such connection, which is what the sender wants (12.9.8.3).
		in.reply(&DREP{LocalID: m.RemoteID, RemoteID: m.LocalID})
		return
	}
	switch c.state {
	case StateREPSent, StateEstablished:
		c.state, c.tid = StateDREQReceived, in.header.TID
		in.agent.timers.set(c, 0)
		c.notify(&ConnEvent{Kind: ConnDisconnected, Private: m.Private[:]})
		if c.Owner == nil && c.state == StateDREQReceived {
			c.Disconnect(in.now)
		}
	case StateDREQSent:
		// Both sides sent a DREQ: each replies to the other's.
		c.tid = in.header.TID
		c.sendOnce(&DREP{LocalID: c.localID, RemoteID: c.remoteID})
		c.timewait(in.now)
		c.notify(&ConnEvent{Kind: ConnDisconnected, Private: m.Private[:]})
	case StateTimewait:
		in.reply(&DREP{LocalID: c.localID, RemoteID: c.remoteID})
	}
}

// drep handles a DREP.
func (in *incoming) drep(m *DREP) {
	if c := in.find(m.RemoteID, m.LocalID); c != nil && c.state == StateDREQSent {
		c.timewait(in.now)
		c.notify(&ConnEvent{Kind: ConnDisconnected, Private: m.Private[:]})
	}
}

// lap rejects an alternate path: path migration is not supported.
func (in *incoming) lap(m *LAP) {
	if c := in.find(m.RemoteID, m.LocalID); c != nil && c.state == StateEstablished {
		in.reply(&APR{LocalID: c.localID, RemoteID: c.remoteID, Status: APRUnsupported})
	}
}
