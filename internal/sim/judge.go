package sim

import (
	"bytes"
	"fmt"
	"slices"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/transport"
)

// poll lets the programs poll that do.
func (w *world) poll() error {
	for i, p := range w.programs {
		if p.deaf > w.now {
			continue
		}
		if err := w.pollOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) pollAll() error {
	for i := range w.programs {
		if err := w.pollOne(i); err != nil {
			return err
		}
	}
	return nil
}

// pollOne takes all completions of a program and holds each against what was posted.
func (w *world) pollOne(i int) error {
	p := w.programs[i]
	if p.killed != nil {
		return fmt.Errorf("program %d lost its context: %w", i, p.killed)
	}
	for {
		c, ok := p.cq.Poll()
		if !ok {
			break
		}
		w.complete++
		w.note(uint64(w.now), uint64(i), c.WRID, uint64(c.Status), uint64(c.ByteLen))
		e := w.find(i, c.QPN)
		if e == nil {
			return fmt.Errorf("invariant 1: completion of QP %#x, which program %d does not have", c.QPN, i)
		}
		var err error
		if c.WRID >= recvID {
			err = e.received(int(c.WRID-recvID), &c)
		} else {
			err = e.completed(int(c.WRID), &c)
		}
		if err != nil {
			return fmt.Errorf("at %d ns, QP %#x of program %d: %w", w.now, c.QPN, i, err)
		}
	}
	return nil
}

// find returns the latest owner of a QPN.
func (w *world) find(program int, qpn uint32) *end {
	for _, x := range slices.Backward(w.pairs) {
		for _, e := range x.ends {
			if e.program == w.programs[program] && e.has(qpn) {
				return e
			}
		}
	}
	return nil
}

// completed judges the completion of send work request id. Unsignaled ones before it are
// complete too, and were successful.
func (e *end) completed(id int, c *nictest.WC) error {
	if id < e.done || id >= len(e.sends) {
		return fmt.Errorf("invariant 1: send %d completed, %d are complete and %d posted", id, e.done, len(e.sends))
	}
	for ; e.done < id; e.done++ {
		if e.sends[e.done].signaled {
			return fmt.Errorf("invariant 1: send %d completed before signaled send %d", id, e.done)
		}
		if err := e.succeeded(e.done); err != nil {
			return err
		}
	}
	e.done++
	if c.Status == ib.WCSuccess {
		return e.succeeded(id)
	}
	return nil
}

// succeeded applies the effect of a send work request to the shadows.
func (e *end) succeeded(id int) error {
	k := &e.sends[id]
	k.ended = true
	if k.bad {
		return fmt.Errorf("send %d was wrong and succeeded", id)
	}
	switch k.op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		copy(e.peer.shadow[k.dst.off:], e.source(k))
		if k.through {
			e.peer.pane.writes--
		}
	case ib.WRBindMW, ib.WRLocalInv:
		e.pane.changed(k)
	case ib.WRRDMARead:
		copy(e.shadow[k.dst.off:][:k.dst.n], e.peer.mem[k.src.off:])
	case ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp:
		if got := le.Uint64(e.mem[k.dst.off:]); got != k.expect {
			return fmt.Errorf("invariant 4: atomic %d found %d, not %d", id, got, k.expect)
		}
		le.PutUint64(e.shadow[k.dst.off:], k.expect)
	}
	return nil
}

func (e *end) source(k *work) []byte { return e.mem[k.src.off:][:k.src.n] }

// received judges the completion of receive work request id: it must be of the
// next message that the peer sent.
func (e *end) received(id int, c *nictest.WC) error {
	l := e.recvs
	if id >= len(l.works) || l.works[id].completed || !l.shared && id != l.completed {
		return fmt.Errorf("invariant 1: receive %d completed, %d are complete of %d", id, l.completed, len(l.works))
	}
	r := &l.works[id]
	r.completed = true
	l.completed++
	if c.Status != ib.WCSuccess {
		return nil
	}
	r.ended = true
	if e.arrived >= len(e.peer.arrivals) {
		return fmt.Errorf("invariant 2: a message arrived that was not sent")
	}
	k := &e.peer.sends[e.peer.arrivals[e.arrived]]
	e.arrived++
	if int(c.ByteLen) != k.src.n {
		return fmt.Errorf("invariant 2: message %d has %d bytes, %d were sent", e.arrived, c.ByteLen, k.src.n)
	}
	if k.op == ib.WRSendWithInv {
		if err := e.pane.returned(k, c); err != nil {
			return err
		}
	} else if k.op != ib.WRSend && c.Imm != k.imm {
		return fmt.Errorf("invariant 2: message %d has immediate %#x, %#x was sent", e.arrived, c.Imm, k.imm)
	}
	switch {
	case k.op == ib.WRRDMAWriteWithImm:
		if want := ib.WCRecvRDMAWithImm; c.Opcode != want {
			return fmt.Errorf("receive completed with opcode %d, want %d", c.Opcode, want)
		}
		if !bytes.Equal(e.mem[k.dst.off:][:k.dst.n], e.peer.source(k)) {
			return fmt.Errorf("invariant 2: message %d was announced before its data were there", e.arrived)
		}
	default:
		if !bytes.Equal(e.mem[r.to.off:][:k.src.n], e.peer.source(k)) {
			return fmt.Errorf("invariant 2: message %d is not what was sent", e.arrived)
		}
		copy(e.shadow[r.to.off:], e.peer.source(k))
	}
	return nil
}

// judge holds the end of the run against the invariants.
func (w *world) judge() error {
	for _, x := range w.pairs {
		for _, e := range x.ends {
			if e.overflow && !e.closed && !e.gone && !x.over && e.State() != ib.QPSErr {
				return fmt.Errorf("QP %#x is in %v, its CQ overflowed", e.QPN(), e.State())
			}
			e.lost = x.over || !e.alive() || e.overflow
		}
	}
	for _, x := range w.pairs {
		for _, e := range x.ends {
			if err := e.settle(); err != nil {
				return fmt.Errorf("QP %#x: %w", e.QPN(), err)
			}
		}
		for _, e := range x.ends {
			if err := e.judgeAtomics(); err != nil {
				return fmt.Errorf("QP %#x: %w", e.QPN(), err)
			}
		}
	}
	if err := w.judgeTalkers(); err != nil {
		return err
	}
	for i, p := range w.programs {
		if err := p.judgeMemory(); err != nil {
			return fmt.Errorf("program %d: %w", i, err)
		}
		if err := judgeCounts(p); err != nil {
			return fmt.Errorf("NIC %d: %w", i, err)
		}
	}
	return nil
}

// settle finds out whether all that was posted is complete, and which memory is vague.
func (e *end) settle() error {
	if !e.lost {
		if err := e.settled(); err != nil {
			return err
		}
	}
	for _, k := range e.sends {
		if k.ended {
			continue
		}
		if k.op == ib.WRRDMAWrite || k.op == ib.WRRDMAWriteWithImm {
			e.peer.vague = append(e.peer.vague, k.dst)
		} else if k.dst.n > 0 {
			e.vague = append(e.vague, k.dst)
		}
	}
	for _, r := range e.recvs.works {
		if !r.ended {
			e.vague = append(e.vague, r.to)
		}
	}
	return nil
}

// settled: all that was posted is complete, and the queue pair is where it should be.
func (e *end) settled() error {
	state := e.State()
	failed := state == ib.QPSErr
	for ; e.done < len(e.sends) && !e.sends[e.done].signaled; e.done++ {
		if err := e.succeeded(e.done); err != nil {
			return err
		}
	}
	l := e.recvs
	switch {
	case state != ib.QPSRTS && !failed:
		return fmt.Errorf("invariant 2: at rest in state %v", state)
	case e.done < len(e.sends):
		return fmt.Errorf("invariant 1: %d of %d sends are complete in state %v", e.done, len(e.sends), state)
	case e.receiver().State() != ib.QPSErr && !e.peer.lost && e.peer.State() != ib.QPSErr && e.arrived != len(e.peer.arrivals):
		return fmt.Errorf("invariant 2: %d of %d messages arrived", e.arrived, len(e.peer.arrivals))
	case failed && !l.shared && l.completed != len(l.works):
		return fmt.Errorf("invariant 1: %d of %d receives are complete in state ERR", l.completed, len(l.works))
	}
	return nil
}

// judgeAtomics: the cells hold how many atomics were executed: all that succeeded, and
// of those that did not no more than were posted.
func (e *end) judgeAtomics() error {
	for _, c := range []struct {
		op     ib.WROpcode
		cell   span
		posted int
	}{{ib.WRAtomicFetchAndAdd, e.peer.cell, e.adds}, {ib.WRAtomicCmpAndSwp, e.peer.swap, e.cas}} {
		ok := 0
		for _, k := range e.sends {
			if k.op == c.op && k.ended {
				ok++
			}
		}
		if got := int(le.Uint64(e.peer.mem[c.cell.off:])); got < ok || got > c.posted {
			return fmt.Errorf("invariant 4: %d atomics were executed, %d succeeded of %d", got, ok, c.posted)
		}
	}
	return nil
}

// judgeMemory compares memory with its shadow, but for what is vague.
func (p *program) judgeMemory() error {
	for _, s := range p.vague {
		copy(p.shadow[s.off:][:s.n], p.mem[s.off:])
	}
	if bytes.Equal(p.mem, p.shadow) {
		return nil
	}
	for i := range p.mem {
		if p.mem[i] != p.shadow[i] {
			return fmt.Errorf("invariant 3: byte %#x is %#02x, should be %#02x", i, p.mem[i], p.shadow[i])
		}
	}
	return nil
}

// judgeCounts: each frame that came in either reached a queue pair or counts under one reason. A
// multicast frame reaches several or, if its sender is the only member, none.
func judgeCounts(p *program) error {
	c := p.Device.Counters()
	reached, dropped := uint64(0), uint64(0)
	for _, n := range c.RxOpcode {
		reached += n
	}
	reached -= c.RxMulticast
	for r := transport.DropTruncated; r <= transport.DropICRC; r++ {
		if r != transport.DropQKey { // the queue pair's own check
			dropped += c.Drops[r]
		}
	}
	if got := p.Device.Link().(*watched).got; got != reached+dropped {
		return fmt.Errorf("invariant 5: %d frames came in, %d reached a queue pair and %d were dropped", got, reached, dropped)
	}
	return nil
}
