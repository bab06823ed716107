package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// A window is the memory window that an endpoint binds for its peer, to a new range of memory each
// time. The peer writes through it and invalidates it with a SEND with invalidate, or the owner
// invalidates it.
type window struct {
	mw     *nic.MW
	state  windowState
	key    uint32
	at     span
	writes int // outstanding or failed WRITEs of the peer
}

type windowState int

const (
	unbound windowState = iota
	binding
	bound
	remoteInvalidating // the peer has posted a SEND with invalidate
	localInvalidating  // the owner has posted a local invalidate
)

// ownerCompleted updates the state after a work request of the owner has succeeded.
func (p *window) ownerCompleted(k *work) {
	switch {
	case k.op == ib.WRBindMW && p.state == binding:
		p.state = bound
	case k.op == ib.WRLocalInv && p.state == localInvalidating && k.imm == p.key:
		p.state = unbound
	}
}

// peerInvalidated checks the receive completion of a SEND with invalidate.
func (p *window) peerInvalidated(k *work, c *nictest.WC) error {
	if c.Flags != ib.WCWithInv || c.Imm != k.imm {
		return fmt.Errorf("invariant 2: completion with flags %#x and R_Key %#x, want %#x invalidated", c.Flags, c.Imm, k.imm)
	}
	if p.key == k.imm && p.state == remoteInvalidating {
		p.state = unbound
	}
	return nil
}

// postWindowWork draws and posts a work request that concerns windows; false if there is none to
// post.
func (e *endpoint) postWindowWork() bool {
	remote := &e.peer.window
	switch r := e.sim.rnd; {
	case e.window.state == unbound && r.IntN(2) == 0:
		return e.bindWindow()
	case e.window.state == bound && r.IntN(8) == 0 && (e.window.writes == 0 || e.sim.profile.Errors > 0):
		e.window.state = localInvalidating
		e.postLocal(transport.SendWR{Opcode: ib.WRLocalInv, Imm: e.window.key})
		return true
	case e.peer.deregistered:
		return false
	case remote.state == bound && r.IntN(4) == 0:
		remote.state = remoteInvalidating
		n := r.IntN(e.sim.profile.MaxMessage + 1)
		k := work{op: ib.WRSendWithInv, src: e.sim.source(n), imm: remote.key, signaled: r.IntN(2) == 0}
		wr := transport.SendWR{Imm: remote.key}
		e.arrivals = append(e.arrivals, len(e.sends))
		e.postFor(k, wr)
		return true
	case remote.state == bound:
		return e.writeThroughWindow(remote, false)
	case remote.state == unbound && remote.key != 0 && e.sim.profile.Errors > 0 && r.IntN(16) == 0:
		return e.writeThroughWindow(remote, true) // with a key that was invalidated
	}
	return false
}

// bindWindow posts a bind to unused memory.
func (e *endpoint) bindWindow() bool {
	p := &e.window
	if e.deregistered {
		return false
	}
	if p.mw == nil {
		var err error
		if p.mw, err = e.Context.AllocMW(e.pd, ib.MWType2); err != nil {
			e.sim.outOfMemory = err
			return false
		}
		p.key = p.mw.RKey()
		e.windows = append(e.windows, p.mw)
	}
	at, ok := e.alloc(1 + e.sim.rnd.IntN(e.sim.profile.MaxMessage))
	if !ok {
		return false
	}
	p.state, p.at, p.key = binding, at, p.key&^0xff|(p.key+1)&0xff
	e.postLocal(transport.SendWR{Opcode: ib.WRBindMW, RKey: p.key,
		Bind: transport.Bind{LKey: e.key, Access: ib.AccessRemoteWrite, Addr: uint64(at.off), Length: uint64(at.n)}})
	return true
}

func (e *endpoint) postLocal(wr transport.SendWR) {
	e.postFor(work{op: wr.Opcode, imm: wr.Imm, signaled: e.sim.rnd.IntN(2) == 0}, wr)
}

// writeThroughWindow posts a WRITE to a range of the peer's window.
func (e *endpoint) writeThroughWindow(remote *window, bad bool) bool {
	r := e.sim.rnd
	off := r.IntN(remote.at.n)
	n := 1 + r.IntN(remote.at.n-off)
	k := work{op: ib.WRRDMAWrite, src: e.sim.source(n), dst: span{remote.at.off + off, n}, throughWindow: true, bad: bad,
		signaled: r.IntN(4) > 0}
	remote.writes++
	e.postFor(k, transport.SendWR{RKey: remote.key, RemoteAddr: uint64(k.dst.off)})
	return true
}

// postFor posts the work request of k after adding its payload.
func (e *endpoint) postFor(k work, wr transport.SendWR) {
	wr.ID, wr.Opcode = uint64(len(e.sends)), k.op
	if k.signaled {
		wr.Flags |= ib.SendSignaled
	}
	if e.sim.rnd.IntN(4) == 0 {
		wr.Flags |= ib.SendFence
	}
	if k.op != ib.WRBindMW && k.op != ib.WRLocalInv {
		e.payload(&k, &wr)
	}
	e.sends = append(e.sends, k)
	e.PostSend(&wr)
}
