package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/packet"
)

// hears judges the completion of a receive: it must be of a message that was said to this
// talker, whole.
func (t *talker) hears(id int, c *nictest.WC) error {
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
			return nil // too short, and could not be put back
		}
		return fmt.Errorf("receive %d ended with %v", id, c.Status)
	}
	t.heard++
	if c.Opcode == ib.WCRecvRDMAWithImm {
		return t.hearsWrite(c)
	}
	m := t.mem[r.to.off:][:c.ByteLen]
	if t.kind == ib.QPTypeUD {
		if len(m) < packet.GRHLen || c.Flags&ib.WCGRH == 0 {
			return fmt.Errorf("invariant 2: a datagram of %d bytes without a GRH", len(m))
		}
		if err := t.hearsFrom((*packet.GRH)(m), m[packet.GRHLen:], c); err != nil {
			return err
		}
		m = m[packet.GRHLen:]
	}
	return t.understands(m, c)
}

// understands finds out which message m is.
func (t *talker) understands(m []byte, c *nictest.WC) error {
	if len(m) < shortest {
		return fmt.Errorf("invariant 2: a message of %d bytes was not sent", len(m))
	}
	id, seq, n := int(le.Uint32(m)), int(le.Uint32(m[4:])), int(le.Uint32(m[8:]))
	by := t.w.talker(id)
	if by == nil || seq >= len(by.said) || n != len(m) || by.said[seq].n != n {
		return fmt.Errorf("invariant 2: message %d of talker %d, %d bytes: was not sent", seq, id, n)
	}
	s := &by.said[seq]
	switch {
	case s.deaf:
		return fmt.Errorf("message %d of talker %d came in spite of its Q_Key", seq, id)
	case s.to == nil && (!t.member || by == t):
		return fmt.Errorf("message %d of talker %d was for the group", seq, id)
	case s.to != nil && s.to != t:
		return fmt.Errorf("message %d of talker %d was for talker %d", seq, id, s.to.id)
	case c.SrcQP != by.QPN():
		return fmt.Errorf("message %d of talker %d is said to be from QP %#x", seq, id, c.SrcQP)
	case (c.Flags&ib.WCWithImm != 0) != (s.op == ib.WRSendWithImm || s.op == ib.WRRDMAWriteWithImm):
		return fmt.Errorf("message %d of talker %d: flags %#x", seq, id, c.Flags)
	case c.Flags&ib.WCWithImm != 0 && int(c.Imm) != seq:
		return fmt.Errorf("message %d of talker %d has immediate %d", seq, id, c.Imm)
	}
	for k, b := range m {
		if b != letter(id, seq, n, k) {
			return fmt.Errorf("invariant 2: message %d of talker %d is damaged at byte %d", seq, id, k)
		}
	}
	return nil
}

// hearsFrom holds the GRH against who sent.
func (t *talker) hearsFrom(g *packet.GRH, m []byte, c *nictest.WC) error {
	if len(m) < shortest {
		return nil // found wrong later
	}
	by := t.w.talker(int(le.Uint32(m)))
	if by == nil || g.Src() != by.Device.GIDs()[1].GID.Addr() {
		return fmt.Errorf("a datagram's GRH is of %v", g.Src())
	}
	if dst := g.Dst(); dst != t.Device.GIDs()[1].GID.Addr() && dst.String() != groupOfSim {
		return fmt.Errorf("a datagram's GRH is to %v", dst)
	}
	return nil
}

// hearsWrite: a WRITE with immediate says which it is; its bytes are in place by then.
func (t *talker) hearsWrite(c *nictest.WC) error {
	seq := int(c.Imm)
	if t.peer == nil || seq >= len(t.peer.said) || int(c.ByteLen) != t.peer.said[seq].n {
		return fmt.Errorf("invariant 2: a WRITE with immediate %d and %d bytes was not sent", seq, c.ByteLen)
	}
	return t.understands(t.mem[t.hearAt[seq].off:][:c.ByteLen], c)
}

func (w *world) talker(id int) *talker {
	for _, t := range w.talkers() {
		if t.id == id {
			return t
		}
	}
	return nil
}

// judgeTalkers: at rest all sends are complete; and memory that was nobody's, or the target of
// a WRITE that was lost in part, holds nothing that was not said to go there.
func (w *world) judgeTalkers() error {
	for _, t := range w.talkers() {
		if !t.failing {
			if err := t.silently(len(t.said)); err != nil {
				return fmt.Errorf("talker %d: %w", t.id, err)
			}
		}
		if t.done != len(t.said) || t.posts != 0 {
			return fmt.Errorf("invariant 1: talker %d: %d of %d sends are complete, %d not posted", t.id, t.done, len(t.said), t.posts)
		}
		for seq, s := range t.hearAt {
			for k, b := range t.mem[s.off:][:s.n+8] {
				if b == untouched {
					continue
				}
				if t.peer == nil || seq >= len(t.peer.said) || !t.peer.wrote(seq, k, b) {
					return fmt.Errorf("invariant 3: talker %d: byte %d of target %d is %#02x", t.id, k, seq, b)
				}
			}
		}
	}
	return nil
}

// wrote reports whether byte b can be byte k of the WRITE seq.
func (t *talker) wrote(seq, k int, b byte) bool {
	s := &t.said[seq]
	return (s.op == ib.WRRDMAWrite || s.op == ib.WRRDMAWriteWithImm) && k < s.n && b == letter(t.id, seq, s.n, k)
}
