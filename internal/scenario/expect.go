package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// expectations are what may follow the word expect.
var expectations = map[string]func(*stage, *words) error{
	"packet":     (*stage).expectPacket,
	"silence":    (*stage).expectSilence,
	"completion": (*stage).expectCompletion,
	"nothing":    (*stage).expectNothing,
	"state":      (*stage).expectState,
	"attributes": (*stage).expectAttributes,
	"notice":     (*stage).expectNotice,
	"event":      (*stage).expectEvent,
	"counter":    (*stage).expectCounter,
	"drop":       (*stage).expectDrop,
	"memory":     (*stage).expectMemory,
	"closed":     (*stage).expectClosed,
}

func (s *stage) cmdExpect(w *words) error {
	what, err := w.next("what is expected")
	if err != nil {
		return err
	}
	f, ok := expectations[what]
	if !ok {
		return fmt.Errorf("%q cannot be expected", what)
	}
	if err := f(s, w); err != nil {
		return err
	}
	return w.end()
}

// A wait is how long something may take, and has to.
type wait struct {
	after, within time.Duration
}

func (s *stage) wait(w *words) (t wait, err error) {
	if t.after, err = w.duration("after"); err != nil {
		return t, err
	}
	t.within, err = w.duration("within")
	t.within = max(t.within, t.after)
	return t, err
}

// until lets time pass until done, within the wait.
func (s *stage) until(t wait, done func() bool) error {
	_, late := s.testbed.Slack()
	switch {
	case t.within > 0 && !s.testbed.Run(s.moment+t.within+late, done):
		return fmt.Errorf("nothing came within %v", t.within)
	case t.within == 0 && !s.testbed.Settle(done):
		return errors.New("nothing came")
	}
	return nil
}

// passed notes that time has gone by since the floor.
func (s *stage) passed(d time.Duration) {
	s.floor += d
	s.moment = max(s.moment, s.floor)
	s.settleFloor()
}

// settleFloor: where time is the NIC's own, the floor is when things did come.
func (s *stage) settleFloor() {
	if early, _ := s.testbed.Slack(); early == 0 {
		s.floor = s.moment
	}
}

// came makes what came at a time the newest that the script has told of. It must not be too early.
func (s *stage) came(t wait, at time.Duration) error {
	early, _ := s.testbed.Slack()
	took := at - s.floor
	s.floor += t.after
	s.moment = max(s.moment, at)
	s.settleFloor()
	if t.after > 0 && took+early < t.after && !s.untimed {
		return fmt.Errorf("it came after %v, sooner than %v", took, t.after)
	}
	return nil
}

// expectPacket takes the next packet that a queue pair sent: packet QP OPCODE [FIELD=VALUE]… [payload=DATA | payload_len=N]
// [tclass=N] [hop_limit=N] [after=TIME] [within=TIME].
func (s *stage) expectPacket(w *words) error {
	text := strings.Join(slices.Concat(w.plain, optionWords(w.options)), " ")
	q, err := s.namedQP(w)
	if err != nil {
		return err
	}
	t, err := s.wait(w)
	if err != nil {
		return err
	}
	match, err := s.matcher(w, q)
	if err != nil {
		return err
	}
	if err := s.until(t, func() bool { return len(s.waiting(q.name)) > 0 }); err != nil {
		return fmt.Errorf("expected packet %s: %w; the last on the cable:%s", text, err, s.last())
	}
	f := s.waiting(q.name)[0]
	if err := errors.Join(match(f.p), s.came(t, f.at)); err != nil {
		return fmt.Errorf("expected packet %s\n    but %w:\n    %v", text, err, f)
	}
	f.taken = true
	return nil
}

func optionWords(l []option) (words []string) {
	for _, o := range l {
		words = append(words, o.name+"="+o.value)
	}
	return words
}

// expectSilence makes sure that no packet came that was not expected: silence [QP] [for=TIME].
func (s *stage) expectSilence(w *words) error {
	name := ""
	if len(w.plain) > 0 {
		q, err := s.namedQP(w)
		if err != nil {
			return err
		}
		name = q.name
	}
	d, err := w.duration("for")
	if err != nil {
		return err
	}
	early, _ := s.testbed.Slack()
	end := s.floor + d
	if early == 0 || d == 0 {
		s.testbed.Settle(nil)
		end = max(end, s.testbed.Now())
	}
	some := func() bool {
		l := s.waiting(name)
		return len(l) > 0 && (early == 0 || l[0].at < end-early)
	}
	if some() || d > 0 && s.testbed.Run(end-early, some) {
		return fmt.Errorf("expected silence, but there came\n    %v", s.waiting(name)[0])
	}
	if d > 0 {
		s.passed(d)
	}
	return nil
}

// expectNothing makes sure that neither packets nor completions nor events came: nothing [for=TIME].
func (s *stage) expectNothing(w *words) error {
	if err := s.expectSilence(w); err != nil {
		return err
	}
	if err := s.poll(); err != nil {
		return err
	}
	for _, l := range s.completions {
		if len(l) > 0 {
			return fmt.Errorf("expected nothing, but there came\n    %v", l[0])
		}
	}
	if len(s.events) > 0 {
		return fmt.Errorf("expected nothing, but there came\n    %v", s.events[0])
	}
	if len(s.notices) > 0 {
		return fmt.Errorf("expected nothing, but there came\n    notice %s", s.notices[0])
	}
	return nil
}

// cmdIgnore forgets what came so far: ignore packets|completions|events|drops…
func (s *stage) cmdIgnore(w *words) error {
	s.testbed.Settle(nil)
	if err := s.poll(); err != nil {
		return err
	}
	for _, what := range w.plain {
		switch what {
		case "packets":
			for _, f := range s.frames {
				f.taken = true
			}
		case "completions":
			clear(s.completions)
		case "events":
			s.events = nil
		case "drops":
			if c := s.under.Counters(); c != nil {
				s.drops = dropped(c)
			}
		default:
			return fmt.Errorf("%q cannot be ignored", what)
		}
	}
	w.plain = nil
	return w.end()
}
