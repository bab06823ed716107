package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"softroce/internal/testbed"
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
	p, ok := s.testbed.(testbed.Port)
	if !ok {
		return testbed.ErrNoFaults
	}
	p.SetUp(how == "up")
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
	b, ok := s.testbed.(testbed.Port)
	if !ok {
		return testbed.ErrNoFaults
	}
	b.SetAddress(a, how == "add")
	return w.end()
}
