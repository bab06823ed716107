package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// A bystander is two processes of different users, whose memory does not block. They write numbers
// to each other in turn while a copy of other memory waits for that.
type bystander struct {
	queues    [2]*queue
	attr      nic.QPAttr // of the first
	exchanged int        // numbers that have arrived
	waiting   bool       // for the completion of the next one
}

const (
	firstBystander   = 1000 // user ID
	bystanderTimeout = 10   // code where packets may be lost: 4 ms
)

// has reports whether c is one of its contexts.
func (y *bystander) has(c *nic.Context) bool {
	for _, q := range y.queues {
		if q != nil && q.Context == c {
			return true
		}
	}
	return false
}

func (sim *simulation) buildBystander() error {
	if sim.blocked == nil {
		return nil
	}
	y := &sim.blocked.bystander
	for i := range y.queues {
		p := &program{mem: nic.NewPage(8), user: firstBystander + uint32(i), drained: map[uint32]bool{}, lastWQE: map[uint32]bool{}}
		if err := p.open(sim, sim.programs[i].Device, smallCQ, false); err != nil {
			return err
		}
		q, err := p.newQueue(1, false)
		if err != nil {
			return err
		}
		y.queues[i] = q
	}
	y.attr = sim.attrs()
	y.attr.RetryCount, y.attr.RNRRetry = 7, 7
	if sim.mayLose() {
		y.attr.Timeout = bystanderTimeout
	}
	return y.connect()
}

// mayLose reports whether the network may lose packets.
func (sim *simulation) mayLose() bool {
	p := &sim.profile
	return p.Loss+p.Reorder+p.Corrupt > 0 || p.Disruptions > 0 || p.Switches != nil && !p.Switches.lossless()
}

// connect takes both queue pairs to RTS, from any state.
func (y *bystander) connect() error {
	a, b := y.attr, y.attr
	b.SQPSN, b.RQPSN = a.RQPSN, a.SQPSN
	for i, at := range []nic.QPAttr{a, b} {
		if err := y.queues[i].SetState(ib.QPSReset); err != nil {
			return err
		}
		at.AV.DGID = y.queues[1-i].Device.GIDs()[1].GID
		if err := y.queues[i].connect(at, y.queues[1-i]); err != nil {
			return err
		}
	}
	return nil
}

// exchange checks the number that has arrived at the bystander, and writes the next one while a
// copy waits for it.
func (sim *simulation) exchange() (posted bool, err error) {
	if sim.blocked == nil {
		return false, nil
	}
	y := &sim.blocked.bystander
	for _, q := range y.queues {
		if q.killed != nil {
			return false, fmt.Errorf("the bystander lost a context: %w", q.killed)
		}
		for _, c := range q.cq.PollAll() {
			if err := y.completed(sim, q, &c); err != nil {
				return false, err
			}
		}
	}
	if y.waiting || sim.blocked.needed() <= y.exchanged {
		return false, nil
	}
	y.waiting = true
	from, to := y.turn()
	le.PutUint64(from.mem, uint64(y.exchanged+1))
	from.PostSend(&transport.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RKey: to.key, SGEs: []transport.SGE{{Length: 8, LKey: from.key}}})
	return true, nil
}

// turn returns which queue writes the next number to which.
func (y *bystander) turn() (from, to *queue) {
	i := y.exchanged % 2
	return y.queues[i], y.queues[1-i]
}

func (y *bystander) completed(sim *simulation, q *queue, c *nictest.WC) error {
	from, to := y.turn()
	switch got := le.Uint64(to.mem); {
	case !y.waiting || q != from:
		return fmt.Errorf("invariant 1: the bystander has a completion of nothing, status %v", c.Status)
	case c.Status != ib.WCSuccess: // the network has lost too much: it begins again, with other PSNs
		r := sim.blocked.rnd
		y.attr.SQPSN, y.attr.RQPSN = r.Uint32()&0xffffff, r.Uint32()&0xffffff
		y.waiting = false
		return y.connect()
	case got != uint64(y.exchanged+1):
		return fmt.Errorf("invariant 2: the bystander has got %d, not %d", got, y.exchanged+1)
	}
	y.exchanged++
	y.waiting = false
	return nil
}
