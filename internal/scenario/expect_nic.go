package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/metrics"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// The expectations of what the program on the NIC observes, and of the NIC's counters.

// expectCompletion expects the next completion of a queue: completion QP send|recv ID STATUS
// [opcode=NAME] [byte_len=N] [imm=N] [inv=KEY] [src_qp=N] [after=TIME] [within=TIME].
func (s *script) expectCompletion(args *arguments) error {
	text := strings.Join(slices.Concat(args.plain, formatOptions(args.options)), " ")
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	side, err := args.next("send or recv")
	if err != nil {
		return err
	}
	if side != "send" && side != "recv" {
		return fmt.Errorf("%q: want send or recv", side)
	}
	id, err := args.next("the number of the work request")
	if err != nil {
		return err
	}
	status, err := args.next("a status")
	if err != nil {
		return err
	}
	st, err := statuses.parse(status)
	if err != nil {
		return err
	}
	t, err := s.parseTiming(args)
	if err != nil {
		return err
	}
	k := queueName{q.name, side == "recv"}
	var pollErr error
	err = s.waitFor(t, func() bool {
		pollErr = errors.Join(pollErr, s.poll())
		return len(s.completions[k]) > 0
	})
	if err := errors.Join(pollErr, err); err != nil {
		return fmt.Errorf("expected completion %s: %w; recent packets:%s", text, err, s.recentFrames())
	}
	c := s.completions[k][0]
	if err := errors.Join(s.matchCompletion(args, c, id, st), s.noteArrival(t, s.testbed.Now())); err != nil {
		return fmt.Errorf("expected completion %s\n    but %w:\n    %v", text, err, completionText(c))
	}
	s.completions[k] = s.completions[k][1:]
	return nil
}

func (s *script) matchCompletion(args *arguments, c testbed.Completion, id string, st ib.WCStatus) error {
	n, err := parseNumber(id, 63)
	switch {
	case err != nil:
		return fmt.Errorf("%q: %w", id, err)
	case c.ID != n:
		return fmt.Errorf("it is for work request %d", c.ID)
	case c.Status != st:
		return fmt.Errorf("its status is %s", statusName(c.Status))
	}
	if v, ok := args.option("opcode"); ok {
		op, err := wcOpcodes.parse(v)
		if err != nil {
			return err
		}
		if c.Opcode != op {
			return fmt.Errorf("its opcode is %s", wcOpcodes.name(c.Opcode))
		}
	}
	if v, ok := args.option("byte_len"); ok && v != fmt.Sprint(c.ByteLen) {
		return fmt.Errorf("its byte_len is %d", c.ByteLen)
	}
	if !c.Recv {
		return nil
	}
	if v, ok := args.option("src_qp"); ok {
		if n, err := parseNumber(v, 24); err != nil || uint32(n) != c.SrcQP {
			return fmt.Errorf("its src_qp is %#x", c.SrcQP)
		}
	}
	if err := s.matchInvalidated(args, c); err != nil {
		return err
	}
	imm := uint64(0)
	_, given := args.peek("imm")
	if err := args.number("imm", 32, &imm); err != nil {
		return err
	}
	if has := c.Flags&ib.WCWithImm != 0; has != given || given && uint32(imm) != c.Imm {
		return fmt.Errorf("its immediate is %#x (present: %v)", c.Imm, has)
	}
	return nil
}

// matchInvalidated checks the R_Key that a SEND with invalidate reported.
func (s *script) matchInvalidated(args *arguments, c testbed.Completion) error {
	v, given := args.option("inv")
	has := c.Flags&ib.WCWithInv != 0
	if !given {
		if has {
			return fmt.Errorf("it reports that key %#x was invalidated", c.Imm)
		}
		return nil
	}
	key, err := s.parseKey(v)
	if err != nil {
		return fmt.Errorf("inv=%s: %w", v, err)
	}
	if !has || key != c.Imm {
		return fmt.Errorf("the invalidated key is %#x (present: %v)", c.Imm, has)
	}
	return nil
}

// expectState expects the state of a queue pair: state QP STATE.
func (s *script) expectState(args *arguments) error {
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	word, err := args.next("a state")
	if err != nil {
		return err
	}
	to, err := states.parse(word)
	if err != nil {
		return err
	}
	var got ib.QPState
	s.testbed.Settle(func() bool {
		got, err = q.nic.State(q.name)
		return err != nil || got == to
	})
	if err != nil {
		return err
	}
	if got != to {
		return fmt.Errorf("expected %s in state %v, but it is in %v; recent packets:%s", q.name, to, got, s.recentFrames())
	}
	return nil
}

// expectEvent expects the next asynchronous event: event NAME [OBJECT].
func (s *script) expectEvent(args *arguments) error {
	name, err := args.next("an event")
	if err != nil {
		return err
	}
	typ, err := eventType(name)
	if err != nil {
		return err
	}
	want := testbed.Event{Type: typ}
	if len(args.plain) > 0 {
		want.Object, _ = args.next("an object")
	}
	arrived := func() bool {
		err = errors.Join(err, s.poll())
		return err != nil || len(s.events) > 0
	}
	if slices.Contains(s.missingEvents, name) {
		return nil // if it arrives, checkLeftovers reports it
	}
	s.testbed.Settle(arrived)
	switch {
	case err != nil:
		return err
	case len(s.events) == 0:
		return fmt.Errorf("expected %s, but there was none; recent packets:%s", eventText(want), s.recentFrames())
	}
	if got := s.events[0]; got.Type != want.Type || want.Object != "" && got.Object != want.Object {
		return fmt.Errorf("expected %s, but got %s", eventText(want), eventText(got))
	}
	s.events = s.events[1:]
	return nil
}

// expectNotice expects the next completion event: notice NAME.
func (s *script) expectNotice(args *arguments) error {
	name, err := args.next("a completion queue")
	if err != nil {
		return err
	}
	s.testbed.Settle(func() bool {
		err = errors.Join(err, s.poll())
		return err != nil || len(s.notices) > 0
	})
	switch {
	case err != nil:
		return err
	case len(s.notices) == 0:
		return fmt.Errorf("expected a notice of %s, but there was none; recent packets:%s", name, s.recentFrames())
	case s.notices[0] != name:
		return fmt.Errorf("expected a notice of %s, but got one of %s", name, s.notices[0])
	}
	s.notices = s.notices[1:]
	return nil
}

// expectDrop expects that the NIC has dropped packets for a reason since the last such line: drop
// REASON [N].
func (s *script) expectDrop(args *arguments) error {
	reason, err := args.next("a reason")
	if err != nil {
		return err
	}
	n := uint64(1)
	if len(args.plain) > 0 {
		word, _ := args.next("a number")
		if n, err = parseNumber(word, 32); err != nil {
			return fmt.Errorf("%q: %w", word, err)
		}
	}
	s.testbed.Settle(nil) // also for a NIC without counters: the packet must have arrived before the next command
	c := s.dut.Counters()
	if c == nil {
		return nil
	}
	if !dropReason(reason) {
		return fmt.Errorf("unknown drop reason %q", reason)
	}
	if got := dropped(c)[reason] - s.drops[reason]; got != n {
		return fmt.Errorf("expected drop %s %d, but it is %d; unexpected drops: %s", reason, n, got, list(s.unexpectedDrops()))
	}
	s.drops[reason] += n
	return nil
}

// dropReason reports whether a drop reason of that name exists.
func dropReason(name string) bool {
	for r := range transport.NumDropReasons {
		if r.String() == name {
			return true
		}
	}
	for d := range wire.NumDrops {
		if "link_"+d.String() == name {
			return true
		}
	}
	return name == "tx_stalled"
}

// expectCounter expects the value of a counter, named as in softroce show: counter NAME N, or
// counter nak_sent|nak_received|rx_opcode|tx_opcode|drop KIND N.
func (s *script) expectCounter(args *arguments) error {
	if len(args.plain) < 2 {
		return errors.New("the name and the value of a counter are missing")
	}
	last := len(args.plain) - 1
	name, value := strings.Join(args.plain[:last], " "), args.plain[last]
	args.plain = nil
	n, err := parseNumber(value, 64)
	if err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	c := s.dut.Counters()
	if c == nil {
		return nil // the NIC under test has no counters to query
	}
	s.testbed.Settle(nil)
	c = s.dut.Counters()
	got, err := counterValue(c, name)
	if err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("expected counter %s %d, but it is %d", name, n, got)
	}
	return nil
}

// counterValue returns a counter by its name in "softroce show counters".
func counterValue(c *nic.Counters, name string) (uint64, error) {
	for _, k := range metrics.Counters {
		if k.Name == name {
			return k.Value(c), nil
		}
	}
	kind, what, _ := strings.Cut(name, " ")
	lists := map[string][]metrics.Labeled{"nak_sent": metrics.NAKs(&c.NAKSent), "nak_received": metrics.NAKs(&c.NAKReceived),
		"rx_opcode": metrics.Opcodes(&c.RxOpcode), "tx_opcode": metrics.Opcodes(&c.TxOpcode)}
	l, ok := lists[kind]
	if !ok && kind != "drop" {
		return 0, fmt.Errorf("unknown counter %q", name)
	}
	for _, d := range c.Dropped() {
		if kind == "drop" {
			l = append(l, metrics.Labeled{Label: d.Reason, Value: d.Count})
		}
	}
	for _, v := range l {
		if v.Label == what {
			return v.Value, nil
		}
	}
	return 0, nil // the lists contain only what has occurred
}

// expectMemory expects the content of memory: memory PLACE DATA. A place without a length is as
// long as the data.
func (s *script) expectMemory(args *arguments) error {
	text := strings.Join(args.plain, " ")
	whole := len(args.plain) > 0 && strings.Contains(args.plain[0], ":")
	p, want, err := s.parsePlaceAndData(args)
	if err != nil {
		return err
	}
	if !whole {
		p.length = min(p.length, uint64(len(want)))
	}
	var got []byte
	s.testbed.Settle(func() bool {
		got, err = p.region.nic.ReadMemory(p.region.name, p.off, p.length)
		return err != nil || bytes.Equal(got, want)
	})
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("expected memory %s\n    but it holds %s", text, formatData(got))
	}
	return nil
}
