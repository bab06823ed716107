package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/packet"
)

// checkReceive checks the completion of a receive: it must be for a whole message that was sent to
// this queue pair.
func (t *unreliableQP) checkReceive(id int, c *nictest.WC) error {
	l := t.recvs
	if id >= len(l.works) || l.works[id].completed || !l.shared && id != l.completed {
		return fmt.Errorf("invariant 1: receive %d completed, %d are complete of %d", id, l.completed, len(l.works))
	}
	r := &l.works[id]
	r.completed = true
	l.completed++
	defer func() { *t.free = append(*t.free, r.to) }()
	if c.Status != ib.WCSuccess {
		if c.Status == ib.WCLocLenErr && l.shared {
			return nil // too short; a receive of an SRQ is not put back
		}
		return fmt.Errorf("receive %d ended with %v", id, c.Status)
	}
	t.received++
	if c.Opcode == ib.WCRecvRDMAWithImm {
		return t.checkWriteImm(c)
	}
	m := t.mem[r.to.off:][:c.ByteLen]
	if t.kind == ib.QPTypeUD {
		if len(m) < packet.GRHLen || c.Flags&ib.WCGRH == 0 {
			return fmt.Errorf("invariant 2: a datagram of %d bytes without a GRH", len(m))
		}
		if err := t.checkGRH((*packet.GRH)(m), m[packet.GRHLen:], c); err != nil {
			return err
		}
		m = m[packet.GRHLen:]
	}
	return t.checkMessage(m, c)
}

// checkMessage identifies message m and checks it.
func (t *unreliableQP) checkMessage(m []byte, c *nictest.WC) error {
	if len(m) < minLength {
		return fmt.Errorf("invariant 2: received a message of %d bytes, shorter than any that was sent", len(m))
	}
	id, seq, n := int(le.Uint32(m)), int(le.Uint32(m[4:])), int(le.Uint32(m[8:]))
	from := t.sim.sender(id)
	if from == nil || seq >= len(from.sent) || n != len(m) || from.sent[seq].n != n {
		return fmt.Errorf("invariant 2: message %d of sender %d, %d bytes, was not sent", seq, id, n)
	}
	s := &from.sent[seq]
	switch {
	case s.badQKey:
		return fmt.Errorf("message %d of sender %d arrived despite its Q_Key", seq, id)
	case s.to == nil && (!t.member || from == t):
		return fmt.Errorf("message %d of sender %d was for the group", seq, id)
	case s.to != nil && s.to != t:
		return fmt.Errorf("message %d of sender %d was for queue pair %d", seq, id, s.to.id)
	case c.SrcQP != from.QPN():
		return fmt.Errorf("message %d of sender %d has source QP %#x", seq, id, c.SrcQP)
	case (c.Flags&ib.WCWithImm != 0) != (s.op == ib.WRSendWithImm || s.op == ib.WRRDMAWriteWithImm):
		return fmt.Errorf("message %d of sender %d has wrong flags %#x", seq, id, c.Flags)
	case c.Flags&ib.WCWithImm != 0 && int(c.Imm) != seq:
		return fmt.Errorf("message %d of sender %d has immediate %d", seq, id, c.Imm)
	}
	for k, b := range m {
		if b != payloadByte(id, seq, n, k) {
			return fmt.Errorf("invariant 2: message %d of sender %d is damaged at byte %d", seq, id, k)
		}
	}
	return nil
}

// checkGRH checks the GRH of a datagram against its sender.
func (t *unreliableQP) checkGRH(g *packet.GRH, m []byte, c *nictest.WC) error {
	if len(m) < minLength {
		return nil // checkMessage reports it
	}
	from := t.sim.sender(int(le.Uint32(m)))
	if from == nil || g.Src() != from.Device.GIDs()[1].GID.Addr() {
		return fmt.Errorf("a datagram's GRH has source %v", g.Src())
	}
	if g.IsIP() == t.sim.profile.RoCEv1 {
		return fmt.Errorf("a datagram's GRH is of another version of RoCE: %x", g)
	}
	if dst := g.Dst(); dst != t.Device.GIDs()[1].GID.Addr() && dst.String() != groupAddr {
		return fmt.Errorf("a datagram's GRH has destination %v", dst)
	}
	return t.sim.checkTClass(g.TClass())
}

// checkWriteImm checks a WRITE with immediate, which is its number. Its bytes must be in place.
func (t *unreliableQP) checkWriteImm(c *nictest.WC) error {
	seq := int(c.Imm)
	if t.peer == nil || seq >= len(t.peer.sent) || int(c.ByteLen) != t.peer.sent[seq].n {
		return fmt.Errorf("invariant 2: a WRITE with immediate %d and %d bytes was not sent", seq, c.ByteLen)
	}
	return t.checkMessage(t.mem[t.writeTargets[seq].off:][:c.ByteLen], c)
}

func (sim *simulation) sender(id int) *unreliableQP {
	for _, t := range sim.unreliableQPs() {
		if t.id == id {
			return t
		}
	}
	return nil
}

// checkUnreliable checks the end of the run: all sends are complete, and targets of WRITEs contain
// nothing that was not sent there.
func (sim *simulation) checkUnreliable() error {
	for _, t := range sim.unreliableQPs() {
		if !t.failing {
			if err := t.completeUnsignaled(len(t.sent)); err != nil {
				return fmt.Errorf("queue pair %d: %w", t.id, err)
			}
		}
		if t.done != len(t.sent) || t.posts != 0 {
			return fmt.Errorf("invariant 1: queue pair %d: %d of %d sends are complete, %d not posted", t.id, t.done, len(t.sent), t.posts)
		}
		for seq, s := range t.writeTargets {
			for k, b := range t.mem[s.off:][:s.n+8] {
				if b == untouched {
					continue
				}
				if t.peer == nil || seq >= len(t.peer.sent) || !t.peer.mayHaveWritten(seq, k, b) {
					return fmt.Errorf("invariant 3: queue pair %d: byte %d of target %d is %#02x", t.id, k, seq, b)
				}
			}
		}
	}
	return nil
}

// mayHaveWritten reports whether b can be byte k of WRITE seq.
func (t *unreliableQP) mayHaveWritten(seq, k int, b byte) bool {
	s := &t.sent[seq]
	return (s.op == ib.WRRDMAWrite || s.op == ib.WRRDMAWriteWithImm) && k < s.n && b == payloadByte(t.id, seq, s.n, k)
}
