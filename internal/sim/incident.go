package sim

import (
	"slices"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
)

// plan draws the rounds in which something happens.
func (w *world) plan() (rounds []int) {
	for range w.profile.Incidents {
		rounds = append(rounds, 20+w.rnd.IntN(300))
	}
	slices.Sort(rounds)
	return rounds
}

// incident lets one thing happen that a program, an operator or a cable may do at any time.
func (w *world) incident() error {
	x := w.pairs[w.rnd.IntN(len(w.pairs))]
	e := x.ends[w.rnd.IntN(2)]
	if x.over || !e.alive() {
		return nil
	}
	switch w.rnd.IntN(8) {
	case 0:
		return e.deregister()
	case 1: // from now on its peer talks to nobody
		e.gone = true
		return e.both((*nictest.QP).Destroy)
	case 2: // a process dies
		e.closed = true
		e.Context.Close()
	case 3:
		return e.SetState(ib.QPSErr)
	case 4:
		return e.drain()
	case 5: // a cable is out for a while
		w.darkness = w.now + w.rnd.Int64N(50e6)
	case 6: // a program that does not poll for a while
		e.deaf = w.now + w.rnd.Int64N(50e6)
	case 7:
		return w.reconnect(x)
	}
	return nil
}

// deregister takes the memory of a program away from under the traffic.
func (p *program) deregister() error {
	if p.dead {
		return nil
	}
	p.dead = true
	for _, m := range p.windows { // a region with windows bound to it stays
		if err := p.Context.DeallocMW(m); err != nil {
			return err
		}
	}
	p.windows = nil
	return p.Context.DeregMR(p.mr)
}

// drain brings a queue pair to SQD; undrain brings it back once it has told that it is drained.
func (e *end) drain() error {
	if e.State() != ib.QPSRTS {
		return nil
	}
	e.draining = true
	return e.Modify(&nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSSQD}}, ib.QPMaskState|ib.QPMaskEnSQDNotify)
}

func (w *world) undrain() error {
	for _, x := range w.pairs {
		for _, e := range x.ends {
			if !e.draining || !e.drained[e.QP.QP] {
				continue
			}
			e.draining = false
			delete(e.drained, e.QP.QP)
			if e.alive() && e.State() == ib.QPSSQD {
				if err := e.SetState(ib.QPSRTS); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// reconnect resets both queue pairs of a pair, whatever is under way, and connects them anew.
// Frames of the old connection may still come: as ever, PSNs keep them apart.
func (w *world) reconnect(x *pair) error {
	var queues [2]*queue
	var posts [2]int
	for i, e := range x.ends {
		if !e.alive() || e.overflow { // a CQ that overflowed is of no use any more
			return nil
		}
		queues[i], posts[i] = e.queue, e.posts
	}
	if err := w.pollAll(); err != nil { // a completion has the QPN alone to tell whose it is
		return err
	}
	for _, q := range queues {
		err := q.both(func(qp *nictest.QP) error { return qp.SetState(ib.QPSReset) })
		if err != nil {
			return err
		}
		q.draining = false
		delete(q.drained, q.QP.QP)
	}
	x.over = true
	a := x.attr
	a.SQPSN = (a.SQPSN + 1<<22 + w.rnd.Uint32N(1<<20)) & 0xffffff
	a.RQPSN = (a.RQPSN + 1<<22 + w.rnd.Uint32N(1<<20)) & 0xffffff
	return w.connect(queues, a, posts)
}
