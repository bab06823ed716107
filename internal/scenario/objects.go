package scenario

import (
	"errors"
	"fmt"
	"strconv"

	"softroce/internal/testbed"
	"softroce/nic"
)

// parseSide parses the word that selects the NIC of an object: "second" or nothing.
func (s *script) parseSide(args *arguments) (testbed.NIC, error) {
	if args.flag("second") {
		return s.secondNIC()
	}
	return s.dut, nil
}

// cmdMR registers memory: mr NAME SIZE [second] [access=FLAGS] [fill=CHARACTER] [pd=NAME]
// [foreign]; or the memory of another region again: mr NAME of=REGION [access=FLAGS] [pd=NAME].
func (s *script) cmdMR(args *arguments) error {
	n, err := s.parseSide(args)
	if err != nil {
		return err
	}
	o := testbed.RegionOptions{Fill: '.', Access: accessFlags.values["all"], Foreign: args.flag("foreign")}
	name, err := s.parseRegionSource(args, &o)
	if err != nil {
		return err
	}
	if a, ok := args.option("access"); ok {
		if o.Access, err = parseAccess(a); err != nil {
			return err
		}
	}
	if f, ok := args.option("fill"); ok {
		if len(f) != 1 {
			return fmt.Errorf("fill=%s: want one character", f)
		}
		o.Fill = f[0]
	}
	o.PD, _ = args.option("pd")
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	r, err := n.Register(name, o)
	if err != nil {
		delete(s.names, name)
		return refused(err)
	}
	s.regions[name] = &region{Region: r, name: name, nic: n}
	return nil
}

// parseRegionSource parses a region's name, and either its size or the region whose memory it
// shares.
func (s *script) parseRegionSource(args *arguments, o *testbed.RegionOptions) (name string, err error) {
	of, ok := args.option("of")
	if !ok {
		name, o.Size, err = nameAndNumber(args, "a size in bytes")
		return name, err
	}
	r := s.regions[of]
	if r == nil || r.window != 0 {
		return "", fmt.Errorf("of=%s: no such memory region", of)
	}
	o.Of, o.Size = of, r.Size
	return args.next("a name")
}

func nameAndNumber(args *arguments, what string) (name string, n int, err error) {
	if name, err = args.next("a name"); err != nil {
		return "", 0, err
	}
	v, err := args.next(what)
	if err != nil {
		return "", 0, err
	}
	if n, err = strconv.Atoi(v); err != nil || n < 0 || n > maxData {
		return "", 0, fmt.Errorf("%q: want %s, at most %d", v, what, maxData)
	}
	return name, n, nil
}

// cmdDereg deregisters memory: dereg NAME. The name remains usable, for keys that are no longer
// valid.
func (s *script) cmdDereg(args *arguments) error {
	name, err := args.next("a memory region")
	if err != nil {
		return err
	}
	r := s.regions[name]
	if r == nil {
		return fmt.Errorf("no memory region %q", name)
	}
	return errors.Join(args.end(), refused(r.nic.Deregister(name)))
}

// cmdFill writes to memory as the program that owns it: fill PLACE DATA.
func (s *script) cmdFill(args *arguments) error {
	p, data, err := s.parsePlaceAndData(args)
	if err != nil {
		return err
	}
	if uint64(len(data)) > p.length {
		return fmt.Errorf("%d bytes do not fit into %d", len(data), p.length)
	}
	return errors.Join(args.end(), p.region.nic.WriteMemory(p.region.name, p.off, data))
}

// parsePlaceAndData parses a place that is entirely within its region, and data.
func (s *script) parsePlaceAndData(args *arguments) (p place, data []byte, err error) {
	if p, err = s.parsePlaceInside(args); err != nil {
		return p, nil, err
	}
	text, err := args.next("data")
	if err != nil {
		return p, nil, err
	}
	data, err = parseData(text)
	return p, data, err
}

// parsePlaceInside parses a place that is entirely within its region.
func (s *script) parsePlaceInside(args *arguments) (p place, err error) {
	at, err := args.next("a place in a memory region")
	if err != nil {
		return p, err
	}
	if p, err = s.parsePlace(at); err != nil {
		return p, err
	}
	if size := uint64(p.region.Size); p.off > size || p.length > size-p.off {
		return p, fmt.Errorf("%s is outside of the region", at)
	}
	return p, nil
}

// cmdCQ creates a completion queue: cq NAME ENTRIES [second].
func (s *script) cmdCQ(args *arguments) error {
	n, err := s.parseSide(args)
	if err != nil {
		return err
	}
	name, entries, err := nameAndNumber(args, "a number of entries")
	if err != nil {
		return err
	}
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	return refused(n.CreateCQ(name, entries))
}

// cmdArm requests a completion event: arm NAME [solicited].
func (s *script) cmdArm(args *arguments) error {
	name, err := args.next("a completion queue")
	if err != nil {
		return err
	}
	solicited := args.flag("solicited")
	s.armed = true
	return errors.Join(args.end(), s.dut.Arm(name, solicited))
}

// cmdSRQ creates a shared receive queue: srq NAME ENTRIES [second] [limit=N] [xrcd=NAME [cq=NAME]].
func (s *script) cmdSRQ(args *arguments) error {
	n, err := s.parseSide(args)
	if err != nil {
		return err
	}
	name, entries, err := nameAndNumber(args, "a number of work requests")
	if err != nil {
		return err
	}
	limit := uint64(0)
	o := testbed.SRQOptions{Entries: entries}
	o.XRCD, _ = args.option("xrcd")
	o.CQ, _ = args.option("cq")
	if err := errors.Join(args.number("limit", 16, &limit), args.end(), s.reserveName(name)); err != nil {
		return err
	}
	o.Limit = int(limit)
	number, err := n.CreateSRQ(name, o)
	if err != nil {
		delete(s.names, name)
		return refused(err)
	}
	s.srqs[name] = number
	return nil
}

// cmdXRCD opens an XRC domain: xrcd NAME.
func (s *script) cmdXRCD(args *arguments) error {
	name, err := args.next("a name")
	if err != nil {
		return err
	}
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	return refused(s.dut.OpenXRCD(name))
}

// cmdAttach attaches a queue pair to a multicast group: attach QP ADDRESS.
func (s *script) cmdAttach(args *arguments) error { return s.attach(args, false) }

// cmdDetach detaches a queue pair from a multicast group: detach QP ADDRESS.
func (s *script) cmdDetach(args *arguments) error { return s.attach(args, true) }

func (s *script) attach(args *arguments, detach bool) error {
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	group, err := args.next("a multicast address")
	if err != nil {
		return err
	}
	a, err := s.parseAddress(group)
	if err != nil {
		return err
	}
	return errors.Join(args.end(), refused(q.nic.Attach(q.name, nic.GIDOf(a), detach)))
}

// cmdResize changes the size of a completion queue or a shared receive queue: resize NAME ENTRIES.
func (s *script) cmdResize(args *arguments) error {
	name, entries, err := nameAndNumber(args, "a number of entries")
	if err != nil {
		return err
	}
	return errors.Join(args.end(), refused(s.dut.Resize(name, entries)))
}

// cmdLimit arms the limit event of a shared receive queue: limit NAME N.
func (s *script) cmdLimit(args *arguments) error {
	name, n, err := nameAndNumber(args, "a number of work requests")
	if err != nil {
		return err
	}
	return errors.Join(args.end(), refused(s.dut.Limit(name, n)))
}
