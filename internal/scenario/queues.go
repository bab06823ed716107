package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"softroce/internal/abi"
	"softroce/nic"
)

// What queues are asked after they were created.

// cmdResize gives a completion queue or a shared receive queue another length: resize NAME ENTRIES.
func (s *stage) cmdResize(w *words) error {
	name, entries, err := nameAndNumber(w, "a number of entries")
	if err != nil {
		return err
	}
	return errors.Join(w.end(), refused(s.under.Resize(name, entries)))
}

// cmdLimit arms the event of a shared receive queue: limit NAME N.
func (s *stage) cmdLimit(w *words) error {
	name, n, err := nameAndNumber(w, "a number of work requests")
	if err != nil {
		return err
	}
	return errors.Join(w.end(), refused(s.under.Limit(name, n)))
}

// expectAttributes compares what a query of a queue pair tells: attributes QP ATTRIBUTE=VALUE….
func (s *stage) expectAttributes(w *words) error {
	text := strings.Join(slices.Concat(w.plain, optionWords(w.options)), " ")
	q, err := s.namedQP(w)
	if err != nil {
		return err
	}
	got, err := q.nic.Query(q.name)
	if err != nil {
		return err
	}
	for name, o := range attrOptions {
		v, ok := w.option(name)
		if !ok {
			continue
		}
		n, err := parseNumber(v, o.bits)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", name, v, err)
		}
		if want := got; o.set != nil {
			if o.set(&want, n); want != got {
				return fmt.Errorf("expected attributes %s, but %s is another: %+v", text, name, got)
			}
		}
	}
	if v, ok := w.option("access"); ok {
		if a, err := parseAccess(v); err != nil || a != got.Access {
			return errors.Join(err, fmt.Errorf("expected attributes %s, but access is %#x", text, uint32(got.Access)))
		}
	}
	return nil
}

// cmdPort pulls out the cable of the NIC under test, or puts it in: port down|up.
func (s *stage) cmdPort(w *words) error {
	how, err := w.next("down or up")
	if err != nil {
		return err
	}
	if how != "down" && how != "up" {
		return fmt.Errorf("%q must be down or up", how)
	}
	p, ok := s.bench.(interface{ port(up bool) })
	if !ok {
		return ErrNoFaults
	}
	p.port(how == "up")
	return w.end()
}

// cmdAddress gives the NIC under test one more address, or takes it away: address add|remove ADDRESS.
func (s *stage) cmdAddress(w *words) error {
	how, err := w.next("add or remove")
	if err != nil {
		return err
	}
	if how != "add" && how != "remove" {
		return fmt.Errorf("%q must be add or remove", how)
	}
	text, err := w.next("an address")
	if err != nil {
		return err
	}
	a, err := s.address(text)
	if err != nil {
		return err
	}
	b, ok := s.bench.(interface{ readdress(a netip.Addr, add bool) })
	if !ok {
		return ErrNoFaults
	}
	b.readdress(a, how == "add")
	return w.end()
}

// Query implements NIC.
func (n *simNIC) Query(name string) (nic.QPAttr, error) {
	q, err := n.queue(name)
	if err != nil {
		return nic.QPAttr{}, err
	}
	return n.ctx.QueryQP(q.qp)
}

// Resize implements NIC.
func (n *simNIC) Resize(name string, entries int) error {
	if q := n.cqs[name]; q != nil {
		slots, err := n.dev.CQSlots(entries)
		if err != nil {
			return err
		}
		ring := nic.NewPage(abi.RingSize(slots, abi.CQESize))
		if err := n.ctx.ResizeCQ(q.cq, slots, ring); err != nil {
			return err
		}
		q.ring = ring
		return nil
	}
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("there is no queue %q that could be resized", name)
	}
	sge := q.recv.maxSGE
	if err := n.dev.RoundSRQ(&entries, &sge); err != nil {
		return err
	}
	ring := nic.NewPage(abi.RingSize(entries, abi.RecvSlotSize(sge)))
	if err := n.ctx.ModifySRQ(q.srq, nic.SRQChange{Limit: -1, Ring: ring, MaxWR: entries}); err != nil {
		return err
	}
	q.recv.ring, q.recv.slots = ring, entries
	return nil
}

// Limit implements NIC.
func (n *simNIC) Limit(name string, limit int) error {
	q := n.srqs[name]
	if q == nil {
		return fmt.Errorf("there is no shared receive queue %q", name)
	}
	return n.ctx.ModifySRQ(q.srq, nic.SRQChange{Limit: limit})
}

// Resize implements NIC.
func (n *remoteNIC) Resize(name string, entries int) error { return n.tell("resize", name, entries) }

// Limit implements NIC.
func (n *remoteNIC) Limit(name string, limit int) error { return n.tell("limit", name, limit) }
