package sim

import (
	"bytes"
	"fmt"
	"slices"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// poll polls for the programs that are not paused.
func (sim *simulation) poll() error {
	for i, p := range sim.programs {
		if p.pausedUntil > sim.now {
			continue
		}
		if err := sim.pollOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (sim *simulation) pollAll() error {
	for i := range sim.programs {
		if err := sim.pollOne(i); err != nil {
			return err
		}
	}
	return nil
}

// pollOne polls all completions of a program and checks each against what was posted.
func (sim *simulation) pollOne(i int) error {
	p := sim.programs[i]
	if p.killed != nil {
		return fmt.Errorf("program %d lost its context: %w", i, p.killed)
	}
	for {
		c, ok, err := p.poll()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		sim.complete++
		sim.hashWords(uint64(sim.now), uint64(i), c.WRID, uint64(c.Status), uint64(c.ByteLen))
		e := sim.find(i, c.QPN)
		if e == nil {
			return fmt.Errorf("invariant 1: completion of QP %#x, which does not belong to program %d", c.QPN, i)
		}
		if c.WRID >= recvID {
			err = e.received(int(c.WRID-recvID), &c)
		} else {
			err = e.completed(int(c.WRID), &c)
		}
		if err != nil {
			return fmt.Errorf("at %d ns, QP %#x of program %d: %w", sim.now, c.QPN, i, err)
		}
	}
	return nil
}

// find returns the latest endpoint with a QPN.
func (sim *simulation) find(program int, qpn uint32) *endpoint {
	for _, x := range slices.Backward(sim.pairs) {
		for _, e := range x.endpoints {
			if e.program == sim.programs[program] && e.has(qpn) {
				return e
			}
		}
	}
	return nil
}

// completed checks the completion of send work request id. Unsignaled ones before it have succeeded
// too.
func (e *endpoint) completed(id int, c *nictest.WC) error {
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
	e.reuse(&e.sends[id])
	return nil
}

// succeeded applies the effect of a send work request to the expected memory.
func (e *endpoint) succeeded(id int) error {
	k := &e.sends[id]
	k.succeeded = true
	e.reuse(k)
	if k.bad {
		return fmt.Errorf("send %d is invalid, but succeeded", id)
	}
	switch k.op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		copy(e.peer.expected[k.dst.off:], e.source(k))
		if k.throughWindow {
			e.peer.window.writes-- // another one may have written to the same bytes since
		} else if !bytes.Equal(e.peer.mem[k.dst.off:][:k.dst.n], e.source(k)) {
			return fmt.Errorf("invariant 2: WRITE %d completed before its data was in memory", id)
		}
	case ib.WRBindMW, ib.WRLocalInv:
		e.window.ownerCompleted(k)
	case ib.WRRDMARead:
		copy(e.expected[k.dst.off:][:k.dst.n], e.peer.source(k))
		if e.hasPoison(k.dst) {
			return fmt.Errorf("invariant 11: READ %d returned memory that was deregistered", id)
		}
		if !bytes.Equal(e.mem[k.dst.off:][:k.dst.n], e.peer.source(k)) {
			return fmt.Errorf("invariant 2: READ %d completed before its data was in memory", id)
		}
	case ib.WRAtomicFetchAndAdd, ib.WRAtomicCmpAndSwp:
		if got := le.Uint64(e.mem[k.dst.off:]); got != k.expect {
			return fmt.Errorf("invariant 4: atomic %d returned %d, want %d", id, got, k.expect)
		}
		le.PutUint64(e.expected[k.dst.off:], k.expect)
	}
	return nil
}

// source returns what was to be sent. The buffer may contain something else by now.
func (p *program) source(k *work) []byte { return p.expected[k.src.off:][:k.src.n] }

// received checks the completion of receive work request id: it must be for the next message that
// the peer sent.
func (e *endpoint) received(id int, c *nictest.WC) error {
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
	r.succeeded = true
	if e.arrived >= len(e.peer.arrivals) {
		return fmt.Errorf("invariant 2: a message arrived that was not sent")
	}
	k := &e.peer.sends[e.peer.arrivals[e.arrived]]
	e.arrived++
	if int(c.ByteLen) != k.src.n {
		return fmt.Errorf("invariant 2: message %d has %d bytes, %d were sent", e.arrived, c.ByteLen, k.src.n)
	}
	if k.op == ib.WRSendWithInv {
		if err := e.window.peerInvalidated(k, c); err != nil {
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
		if e.hasPoison(k.dst) {
			return fmt.Errorf("invariant 11: message %d is memory that was released", e.arrived)
		}
		if !bytes.Equal(e.mem[k.dst.off:][:k.dst.n], e.peer.source(k)) {
			return fmt.Errorf("invariant 2: message %d completed before its data was in memory", e.arrived)
		}
	default:
		if e.hasPoison(r.to) {
			return fmt.Errorf("invariant 11: message %d is memory that was released", e.arrived)
		}
		if !bytes.Equal(e.mem[r.to.off:][:k.src.n], e.peer.source(k)) {
			return fmt.Errorf("invariant 2: message %d differs from what was sent", e.arrived)
		}
		copy(e.expected[r.to.off:], e.peer.source(k))
	}
	return nil
}

// check checks the end of the run against the invariants.
func (sim *simulation) check() error {
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			if e.overflow && !e.closed && !e.gone && !x.replaced && e.State() != ib.QPSErr {
				return fmt.Errorf("QP %#x is in %v, its CQ overflowed", e.QPN(), e.State())
			}
			e.lost = x.replaced || !e.alive() || e.overflow
		}
	}
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			if err := e.finish(); err != nil {
				return fmt.Errorf("QP %#x: %w", e.QPN(), err)
			}
		}
		for _, e := range x.endpoints {
			if err := e.checkAtomics(); err != nil {
				return fmt.Errorf("QP %#x: %w", e.QPN(), err)
			}
		}
	}
	if err := sim.checkUnreliable(); err != nil {
		return err
	}
	if err := sim.checkSwitches(); err != nil {
		return err
	}
	if err := sim.checkTraffic(); err != nil {
		return err
	}
	for i, p := range sim.programs {
		if err := p.checkMemory(); err != nil {
			return fmt.Errorf("program %d: %w", i, err)
		}
		if err := checkDropCounts(p, sim.ports[i], sim.members(p.Device)); err != nil {
			return fmt.Errorf("NIC %d: %w", i, err)
		}
	}
	return nil
}

// finish checks that everything posted is complete, and marks memory of failed work as unchecked.
func (e *endpoint) finish() error {
	if !e.lost {
		if err := e.checkFinished(); err != nil {
			return err
		}
	}
	for _, k := range e.sends {
		if k.succeeded {
			continue
		}
		if k.op == ib.WRRDMAWrite || k.op == ib.WRRDMAWriteWithImm {
			e.peer.unchecked = append(e.peer.unchecked, k.dst)
		} else if k.dst.n > 0 {
			e.unchecked = append(e.unchecked, k.dst)
		}
	}
	for _, r := range e.recvs.works {
		if !r.succeeded {
			e.unchecked = append(e.unchecked, r.to)
		}
	}
	return nil
}

// checkFinished checks that everything posted is complete and that the queue pair is in the right
// state.
func (e *endpoint) checkFinished() error {
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
		return fmt.Errorf("invariant 2: in state %v at the end", state)
	case e.done < len(e.sends):
		return fmt.Errorf("invariant 1: %d of %d sends are complete in state %v", e.done, len(e.sends), state)
	case e.receiver().State() != ib.QPSErr && !e.peer.lost && e.peer.State() != ib.QPSErr && e.arrived != len(e.peer.arrivals):
		return fmt.Errorf("invariant 2: %d of %d messages arrived", e.arrived, len(e.peer.arrivals))
	case failed && !l.shared && l.completed != len(l.works):
		return fmt.Errorf("invariant 1: %d of %d receives are complete in state ERR", l.completed, len(l.works))
	}
	return nil
}

// checkAtomics checks the counters: they are at least the number of atomics that succeeded, and at
// most the number posted.
func (e *endpoint) checkAtomics() error {
	for _, c := range []struct {
		op     ib.WROpcode
		cell   span
		posted int
	}{{ib.WRAtomicFetchAndAdd, e.peer.cell, e.adds}, {ib.WRAtomicCmpAndSwp, e.peer.swap, e.cas}} {
		ok := 0
		for _, k := range e.sends {
			if k.op == c.op && k.succeeded {
				ok++
			}
		}
		if got := int(le.Uint64(e.peer.mem[c.cell.off:])); got < ok || got > c.posted {
			return fmt.Errorf("invariant 4: %d atomics were executed, %d succeeded of %d", got, ok, c.posted)
		}
	}
	return nil
}

// checkMemory compares memory with what is expected, except where it is unchecked.
func (p *program) checkMemory() error {
	for _, s := range p.unchecked {
		if p.hasPoison(s) {
			return fmt.Errorf("invariant 11: memory at %#x was written with what was released", s.off)
		}
		copy(p.expected[s.off:][:s.n], p.mem[s.off:])
	}
	for _, s := range p.overwritten {
		copy(p.expected[s.off:][:s.n], p.mem[s.off:])
	}
	if bytes.Equal(p.mem, p.expected) {
		return nil
	}
	for i := range p.mem {
		if p.mem[i] != p.expected[i] {
			return fmt.Errorf("invariant 3: byte %#x is %#02x, want %#02x", i, p.mem[i], p.expected[i])
		}
	}
	return nil
}

// members returns how many queue pairs of a NIC are attached to the multicast group.
func (sim *simulation) members(d *nic.Device) (n uint64) {
	for _, t := range sim.unreliableQPs() {
		if t.Device == d && t.member {
			n++
		}
	}
	return n
}

// checkDropCounts checks that each received frame reached a queue pair or counts under one reason.
// A multicast frame reaches several or, if its sender is the only member, none. It also counts as
// dropped for each member whose program's memory blocks.
func checkDropCounts(p *program, ports []*hashingLink, members uint64) error {
	c := p.Device.Counters()
	reached, dropped := uint64(0), uint64(0)
	for _, n := range c.RxOpcode {
		reached += n
	}
	reached -= c.RxMulticast
	for r := transport.DropTruncated; r <= transport.DropICRC; r++ {
		if r != transport.DropQKey { // checked and counted after the queue pair was found
			dropped += c.Drops[r]
		}
	}
	got, groups := uint64(0), uint64(0)
	for _, l := range ports {
		got += l.got
		groups += l.groups
	}
	waited := c.Drops[transport.DropMemoryWait]
	most := reached + dropped + waited
	if least := most - min(waited, groups*members); got < least || got > most {
		return fmt.Errorf("invariant 5: %d frames were received, %d reached a queue pair, %d were dropped, and %d because of memory that blocks",
			got, reached, dropped, waited)
	}
	return nil
}
