package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// A pane is the memory window that an end opens for its peer, a new range of memory each time.
// The peer writes to it, and gives it back with a SEND with invalidate; or the owner shuts it.
type pane struct {
	mw     *nic.MW
	state  paneState
	key    uint32
	at     span
	writes int // of the peer, that have not succeeded
}

type paneState int

const (
	shut paneState = iota
	opening
	open
	returning // a SEND with invalidate is under way
	shutting  // a local invalidate is
)

// changed hears that a work request of the owner has succeeded.
func (p *pane) changed(k *work) {
	switch {
	case k.op == ib.WRBindMW && p.state == opening:
		p.state = open
	case k.op == ib.WRLocalInv && p.state == shutting && k.imm == p.key:
		p.state = shut
	}
}

// returned judges the completion of a SEND with invalidate.
func (p *pane) returned(k *work, c *nictest.WC) error {
	if c.Flags != ib.WCWithInv || c.Imm != k.imm {
		return fmt.Errorf("invariant 2: flags %#x say that %#x was invalidated, %#x was asked for", c.Flags, c.Imm, k.imm)
	}
	if p.key == k.imm && p.state == returning {
		p.state = shut
	}
	return nil
}

// postPane draws a work request that has to do with windows; false where there is none to post.
func (e *end) postPane() bool {
	far := &e.peer.pane
	switch r := e.w.rnd; {
	case e.pane.state == shut && r.IntN(2) == 0:
		return e.openPane()
	case e.pane.state == open && r.IntN(8) == 0 && (e.pane.writes == 0 || e.w.profile.Errors > 0):
		e.pane.state = shutting
		e.postLocal(transport.SendWR{Opcode: ib.WRLocalInv, Imm: e.pane.key})
		return true
	case e.peer.dead:
		return false
	case far.state == open && r.IntN(4) == 0:
		far.state = returning
		n := r.IntN(e.w.profile.MaxMessage + 1)
		k := work{op: ib.WRSendWithInv, src: span{r.IntN(sourceSize - n), n}, imm: far.key, signaled: r.IntN(2) == 0}
		wr := transport.SendWR{Imm: far.key}
		e.arrivals = append(e.arrivals, len(e.sends))
		e.postFor(k, wr)
		return true
	case far.state == open:
		return e.writeThrough(far, false)
	case far.state == shut && far.key != 0 && e.w.profile.Errors > 0 && r.IntN(16) == 0:
		return e.writeThrough(far, true) // with the key of the past
	}
	return false
}

// openPane posts a bind to memory that nothing else uses.
func (e *end) openPane() bool {
	p := &e.pane
	if e.dead {
		return false
	}
	if p.mw == nil {
		var err error
		if p.mw, err = e.Context.AllocMW(e.pd, ib.MWType2); err != nil {
			e.w.short = err
			return false
		}
		p.key = p.mw.RKey()
		e.windows = append(e.windows, p.mw)
	}
	at, ok := e.take(1 + e.w.rnd.IntN(e.w.profile.MaxMessage))
	if !ok {
		return false
	}
	p.state, p.at, p.key = opening, at, p.key&^0xff|(p.key+1)&0xff
	e.postLocal(transport.SendWR{Opcode: ib.WRBindMW, RKey: p.key,
		Bind: transport.Bind{LKey: e.key, Access: ib.AccessRemoteWrite, Addr: uint64(at.off), Length: uint64(at.n)}})
	return true
}

func (e *end) postLocal(wr transport.SendWR) {
	e.postFor(work{op: wr.Opcode, imm: wr.Imm, signaled: e.w.rnd.IntN(2) == 0}, wr)
}

// writeThrough posts a WRITE to a part of the peer's window.
func (e *end) writeThrough(far *pane, bad bool) bool {
	r := e.w.rnd
	off := r.IntN(far.at.n)
	n := 1 + r.IntN(far.at.n-off)
	k := work{op: ib.WRRDMAWrite, src: span{r.IntN(sourceSize - n), n}, dst: span{far.at.off + off, n}, through: true, bad: bad,
		signaled: r.IntN(4) > 0}
	far.writes++
	e.postFor(k, transport.SendWR{RKey: far.key, RemoteAddr: uint64(k.dst.off)})
	return true
}

// postFor posts the work request for k, whose payload it adds.
func (e *end) postFor(k work, wr transport.SendWR) {
	wr.ID, wr.Opcode = uint64(len(e.sends)), k.op
	if k.signaled {
		wr.Flags |= ib.SendSignaled
	}
	if e.w.rnd.IntN(4) == 0 {
		wr.Flags |= ib.SendFence
	}
	if k.op != ib.WRBindMW && k.op != ib.WRLocalInv {
		e.payload(&k, &wr)
	}
	e.sends = append(e.sends, k)
	e.PostSend(&wr)
}
