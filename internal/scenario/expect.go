package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// expectations are the forms of the expect command, by their first argument.
var expectations = map[string]func(*script, *arguments) error{
	"packet":     (*script).expectPacket,
	"silence":    (*script).expectSilence,
	"completion": (*script).expectCompletion,
	"nothing":    (*script).expectNothing,
	"state":      (*script).expectState,
	"attributes": (*script).expectAttributes,
	"notice":     (*script).expectNotice,
	"event":      (*script).expectEvent,
	"counter":    (*script).expectCounter,
	"drop":       (*script).expectDrop,
	"memory":     (*script).expectMemory,
	"closed":     (*script).expectClosed,
}

func (s *script) cmdExpect(args *arguments) error {
	what, err := args.next("an expectation")
	if err != nil {
		return err
	}
	f, ok := expectations[what]
	if !ok {
		return fmt.Errorf("unknown expectation %q", what)
	}
	if err := f(s, args); err != nil {
		return err
	}
	return args.end()
}

// timing is when an arrival is allowed: not before after, and, if within is set, not after it.
type timing struct {
	after, within time.Duration
}

func (s *script) parseTiming(args *arguments) (t timing, err error) {
	if t.after, err = args.duration("after"); err != nil {
		return t, err
	}
	t.within, err = args.duration("within")
	t.within = max(t.within, t.after)
	return t, err
}

// waitFor lets time pass until done, at most as long as t allows.
func (s *script) waitFor(t timing, done func() bool) error {
	_, late := s.testbed.Slack()
	switch {
	case t.within > 0 && !s.testbed.Run(s.latest+t.within+late, done):
		return fmt.Errorf("nothing arrived within %v", t.within)
	case t.within == 0 && !s.testbed.Settle(done):
		return errors.New("nothing arrived")
	}
	return nil
}

// elapse records that the script has waited for d since earliest.
func (s *script) elapse(d time.Duration) {
	s.earliest += d
	s.latest = max(s.latest, s.earliest)
	s.syncEarliest()
}

// syncEarliest sets earliest to latest where arrival times are exact, that is in a simulation.
func (s *script) syncEarliest() {
	if early, _ := s.testbed.Slack(); early == 0 {
		s.earliest = s.latest
	}
}

// noteArrival records an expected arrival and returns an error if it was too early.
func (s *script) noteArrival(t timing, at time.Duration) error {
	early, _ := s.testbed.Slack()
	took := at - s.earliest
	s.earliest += t.after
	s.latest = max(s.latest, at)
	s.syncEarliest()
	if t.after > 0 && took+early < t.after && !s.untimed {
		return fmt.Errorf("it arrived after %v, earlier than %v", took, t.after)
	}
	return nil
}

// expectPacket expects the next packet of a queue pair: packet QP OPCODE [FIELD=VALUE]…
// [payload=DATA | payload_len=N] [tclass=N] [hop_limit=N] [after=TIME] [within=TIME].
func (s *script) expectPacket(args *arguments) error {
	text := strings.Join(slices.Concat(args.plain, formatOptions(args.options)), " ")
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	t, err := s.parseTiming(args)
	if err != nil {
		return err
	}
	match, err := s.parseMatcher(args, q)
	if err != nil {
		return err
	}
	if err := s.waitFor(t, func() bool { return len(s.unexpectedFrames(q.name)) > 0 }); err != nil {
		return fmt.Errorf("expected packet %s: %w; recent packets:%s", text, err, s.recentFrames())
	}
	f := s.unexpectedFrames(q.name)[0]
	if err := errors.Join(match(f.p), s.noteArrival(t, f.at)); err != nil {
		return fmt.Errorf("expected packet %s\n    but %w:\n    %v", text, err, f)
	}
	f.consumed = true
	return nil
}

func formatOptions(l []option) (words []string) {
	for _, o := range l {
		words = append(words, o.name+"="+o.value)
	}
	return words
}

// expectSilence expects that no other packet arrives: silence [QP] [for=TIME].
func (s *script) expectSilence(args *arguments) error {
	name := ""
	if len(args.plain) > 0 {
		q, err := s.parseQP(args)
		if err != nil {
			return err
		}
		name = q.name
	}
	d, err := args.duration("for")
	if err != nil {
		return err
	}
	early, _ := s.testbed.Slack()
	end := s.earliest + d
	if early == 0 || d == 0 {
		s.testbed.Settle(nil)
		end = max(end, s.testbed.Now())
	}
	some := func() bool {
		l := s.unexpectedFrames(name)
		return len(l) > 0 && (early == 0 || l[0].at < end-early)
	}
	if some() || d > 0 && s.testbed.Run(end-early, some) {
		return fmt.Errorf("expected silence, but got\n    %v", s.unexpectedFrames(name)[0])
	}
	if d > 0 {
		s.elapse(d)
	}
	return nil
}

// expectNothing expects that no other packet, completion or event arrives: nothing [for=TIME].
func (s *script) expectNothing(args *arguments) error {
	if err := s.expectSilence(args); err != nil {
		return err
	}
	if err := s.poll(); err != nil {
		return err
	}
	for _, l := range s.completions {
		if len(l) > 0 {
			return fmt.Errorf("expected nothing, but got\n    %s", completionText(l[0]))
		}
	}
	if len(s.events) > 0 {
		return fmt.Errorf("expected nothing, but got\n    %s", eventText(s.events[0]))
	}
	if len(s.notices) > 0 {
		return fmt.Errorf("expected nothing, but got\n    notice %s", s.notices[0])
	}
	return nil
}

// cmdIgnore discards what has arrived so far: ignore packets|completions|events|drops…
func (s *script) cmdIgnore(args *arguments) error {
	s.testbed.Settle(nil)
	if err := s.poll(); err != nil {
		return err
	}
	for _, what := range args.plain {
		switch what {
		case "packets":
			for _, f := range s.frames {
				f.consumed = true
			}
		case "completions":
			clear(s.completions)
		case "events":
			s.events = nil
		case "drops":
			if c := s.dut.Counters(); c != nil {
				s.drops = dropped(c)
			}
		default:
			return fmt.Errorf("ignore: unknown kind %q", what)
		}
	}
	args.plain = nil
	return args.end()
}
