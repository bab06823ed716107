package sim

import (
	"slices"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
)

// plan draws n rounds of the run.
func (sim *simulation) plan(n, from, within int) (rounds []int) {
	for range n {
		rounds = append(rounds, from+sim.rnd.IntN(within))
	}
	slices.Sort(rounds)
	return rounds
}

// disruption draws and carries out something that a program, an operator or a link may do at any
// time.
func (sim *simulation) disruption() error {
	x := sim.pairs[sim.rnd.IntN(len(sim.pairs))]
	e := x.endpoints[sim.rnd.IntN(2)]
	if x.replaced || !e.alive() {
		return nil
	}
	switch sim.rnd.IntN(8) {
	case 0:
		if e.deregistered {
			return nil
		}
		err := e.deregister()
		e.reuseMemory(sim)
		return err
	case 1: // its peer gets no responses from now on
		e.gone = true
		err := e.both((*nictest.QP).Destroy)
		e.reuseAll()
		return err
	case 2: // the process ends
		e.closed = true
		e.Context.Close()
		e.reuseMemory(sim)
	case 3:
		return e.SetState(ib.QPSErr)
	case 4:
		return e.drain()
	case 5: // the link is down for a while
		sim.linkDownUntil = sim.now + sim.rnd.Int64N(50e6)
	case 6: // the program does not poll for a while
		e.pausedUntil = sim.now + sim.rnd.Int64N(50e6)
	case 7:
		return sim.reconnect(x)
	}
	return nil
}

// deregister deregisters the memory of a program during traffic.
func (p *program) deregister() error {
	p.deregistered = true
	for _, m := range p.windows { // a region with bound windows cannot be deregistered
		if err := p.Context.DeallocMW(m); err != nil {
			return err
		}
	}
	p.windows = nil
	return p.Context.DeregMR(p.mr)
}

// drain takes a queue pair to SQD. resumeDrained takes it back to RTS after its SQ_DRAINED event.
func (e *endpoint) drain() error {
	if e.State() != ib.QPSRTS {
		return nil
	}
	err := e.Modify(&nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSSQD, EnSQDNotify: true}}, ib.QPMaskState|ib.QPMaskEnSQDNotify)
	if err != nil && e.State() == ib.QPSErr {
		return nil // what was posted before has failed at once
	}
	e.draining = err == nil
	return err
}

// resumeDrained returns queue pairs whose SQ_DRAINED event has come to RTS.
func (sim *simulation) resumeDrained() error {
	for _, e := range sim.drainedEndpoints() {
		e.draining = false
		delete(e.drained, e.QPN())
		if e.alive() && e.State() == ib.QPSSQD {
			if err := e.SetState(ib.QPSRTS); err != nil {
				return err
			}
		}
	}
	return nil
}

func (sim *simulation) drainedEndpoints() (l []*endpoint) {
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			if e.draining && e.drained[e.QPN()] {
				l = append(l, e)
			}
		}
	}
	return l
}

// reconnect resets both queue pairs of a pair, whatever is outstanding, and connects them again.
// Frames of the old connection may still arrive; PSNs tell them apart.
func (sim *simulation) reconnect(x *pair) error {
	var queues [2]*queue
	var posts [2]int
	for i, e := range x.endpoints {
		if !e.alive() || e.overflow { // a CQ that has overrun cannot be used any more
			return nil
		}
		queues[i], posts[i] = e.queue, e.posts
	}
	for _, q := range queues {
		err := q.both(func(qp *nictest.QP) error { return qp.SetState(ib.QPSReset) })
		if err != nil {
			return err
		}
		q.draining = false
	}
	if err := sim.pollAll(); err != nil { // only the QPN tells which connection a completion belongs to
		return err
	}
	for _, e := range x.endpoints {
		e.reuseAll()
		e.forgetEvents()
	}
	x.replaced = true
	a := x.attr
	a.SQPSN = (a.SQPSN + 1<<22 + sim.rnd.Uint32N(1<<20)) & 0xffffff
	a.RQPSN = (a.RQPSN + 1<<22 + sim.rnd.Uint32N(1<<20)) & 0xffffff
	return sim.connect(queues, a, posts)
}
