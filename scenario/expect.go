package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"softroce/capture"
	"softroce/metrics"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
)

// expectations are what may follow the word expect.
var expectations = map[string]func(*stage, *words) error{
	"packet":     (*stage).expectPacket,
	"silence":    (*stage).expectSilence,
	"completion": (*stage).expectCompletion,
	"nothing":    (*stage).expectNothing,
	"state":      (*stage).expectState,
	"event":      (*stage).expectEvent,
	"counter":    (*stage).expectCounter,
	"drop":       (*stage).expectDrop,
	"memory":     (*stage).expectMemory,
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
	_, late := s.bench.Slack()
	switch {
	case t.within > 0 && !s.bench.Run(s.moment+t.within+late, done):
		return fmt.Errorf("nothing came within %v", t.within)
	case t.within == 0 && !s.bench.Settle(done):
		return errors.New("nothing came")
	}
	return nil
}

// came makes what came at a time the newest that the script has told of. It must not be too early.
func (s *stage) came(t wait, at time.Duration) error {
	early, _ := s.bench.Slack()
	took := at - s.moment
	s.moment = max(s.moment, at)
	if t.after > 0 && took+early < t.after {
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

// matcher reads what a packet has to be.
func (s *stage) matcher(w *words, q *queuePair) (func(*capture.Packet) error, error) {
	name, err := w.next("an opcode")
	if err != nil {
		return nil, err
	}
	op, err := parseOpcode(name, q.typ)
	if err != nil {
		return nil, err
	}
	m := &packetMatch{op: op}
	if err := m.addressing(w); err != nil {
		return nil, err
	}
	options, err := s.expand(w.options)
	if err != nil {
		return nil, err
	}
	w.options = nil
	for _, o := range options {
		f := fieldNamed(o.name)
		if f == nil {
			return nil, fmt.Errorf("there is no field %q", o.name)
		}
		if err := f.check(op); err != nil {
			return nil, err
		}
		v, mask, err := s.fieldValue(f, o.value)
		if err != nil {
			return nil, err
		}
		m.fields = append(m.fields, want{f, v, mask, o.value})
	}
	return m.check, nil
}

// A packetMatch is what a packet has to be.
type packetMatch struct {
	op      packet.Opcode
	fields  []want
	payload []byte // nil: any
	length  int    // of the payload; -1: any
	tclass  int    // -1: any
	hops    int    // -1: any
}

// addressing takes what is said of the payload and the headers around the transport.
func (m *packetMatch) addressing(w *words) (err error) {
	m.length, m.tclass, m.hops = -1, -1, -1
	if d, ok := w.option("payload"); ok {
		if m.payload, err = parseData(d); err != nil {
			return err
		}
		m.length = len(m.payload)
	}
	for name, to := range map[string]*int{"payload_len": &m.length, "tclass": &m.tclass, "hop_limit": &m.hops} {
		v, ok := w.option(name)
		if !ok {
			continue
		}
		n, err := parseNumber(v, 31)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", name, v, err)
		}
		*to = int(n)
	}
	return nil
}

// says reports whether the script names a field.
func (m *packetMatch) says(name string) bool {
	return slices.ContainsFunc(m.fields, func(w want) bool { return w.f.name == name })
}

// check compares p with what is wanted, and with what holds of every packet unless the script says otherwise.
func (m *packetMatch) check(p *capture.Packet) error {
	if p.Opcode != m.op {
		return fmt.Errorf("it is %v", p.Opcode)
	}
	for i := range m.fields {
		if err := m.fields[i].check(p); err != nil {
			return err
		}
	}
	switch {
	case p.Err != nil:
		return p.Err
	case !p.ICRCOK():
		return errors.New("its ICRC is wrong")
	case p.TVer != 0 && !m.says("tver"):
		return fmt.Errorf("tver is %d", p.TVer)
	case p.PKey != packet.DefaultPKey && !m.says("pkey"):
		return fmt.Errorf("pkey is %#04x", p.PKey)
	case m.length >= 0 && len(p.Payload) != m.length:
		return fmt.Errorf("it has %d bytes of payload, not %d", len(p.Payload), m.length)
	case m.payload != nil && !bytes.Equal(p.Payload, m.payload):
		return fmt.Errorf("its payload is %s", showData(p.Payload))
	case m.tclass >= 0 && int(p.TClass) != m.tclass:
		return fmt.Errorf("tclass is %#02x", p.TClass)
	case m.hops >= 0 && int(p.HopLimit) != m.hops:
		return fmt.Errorf("hop_limit is %d", p.HopLimit)
	}
	return nil
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
	some := func() bool { return len(s.waiting(name)) > 0 }
	s.bench.Settle(nil)
	if some() || d > 0 && s.bench.Run(s.bench.Now()+d, some) {
		return fmt.Errorf("expected silence, but there came\n    %v", s.waiting(name)[0])
	}
	if d > 0 {
		s.moment = s.bench.Now()
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
	return nil
}

// expectCompletion takes the next completion of a queue: completion QP send|recv ID STATUS [opcode=NAME] [byte_len=N]
// [imm=N] [after=TIME] [within=TIME].
func (s *stage) expectCompletion(w *words) error {
	text := strings.Join(slices.Concat(w.plain, optionWords(w.options)), " ")
	q, err := s.namedQP(w)
	if err != nil {
		return err
	}
	side, err := w.next("send or recv")
	if err != nil {
		return err
	}
	if side != "send" && side != "recv" {
		return fmt.Errorf("%q must be send or recv", side)
	}
	id, err := w.next("the number of the work request")
	if err != nil {
		return err
	}
	status, err := w.next("a status")
	if err != nil {
		return err
	}
	st, err := statuses.parse(status)
	if err != nil {
		return err
	}
	t, err := s.wait(w)
	if err != nil {
		return err
	}
	k := queueName{q.name, side == "recv"}
	var pollErr error
	err = s.until(t, func() bool {
		pollErr = errors.Join(pollErr, s.poll())
		return len(s.completions[k]) > 0
	})
	if err := errors.Join(pollErr, err); err != nil {
		return fmt.Errorf("expected completion %s: %w; the last on the cable:%s", text, err, s.last())
	}
	c := s.completions[k][0]
	if err := errors.Join(matchCompletion(w, c, id, st), s.came(t, s.bench.Now())); err != nil {
		return fmt.Errorf("expected completion %s\n    but %w:\n    %v", text, err, c)
	}
	s.completions[k] = s.completions[k][1:]
	return nil
}

func matchCompletion(w *words, c Completion, id string, st transport.Status) error {
	n, err := parseNumber(id, 63)
	switch {
	case err != nil:
		return fmt.Errorf("%q %w", id, err)
	case c.ID != n:
		return fmt.Errorf("it is of work request %d", c.ID)
	case c.Status != st:
		return fmt.Errorf("its status is %s", statusName(c.Status))
	}
	if v, ok := w.option("opcode"); ok {
		op, err := wcOpcodes.parse(v)
		if err != nil {
			return err
		}
		if c.Opcode != op {
			return fmt.Errorf("its opcode is %s", wcOpcodes.name(c.Opcode))
		}
	}
	if v, ok := w.option("byte_len"); ok && v != fmt.Sprint(c.ByteLen) {
		return fmt.Errorf("its byte_len is %d", c.ByteLen)
	}
	imm := uint64(0)
	_, said := w.peek("imm")
	if err := w.number("imm", 32, &imm); err != nil {
		return err
	}
	if has := c.Flags&transport.WCWithImm != 0; has != said || said && uint32(imm) != c.Imm {
		return fmt.Errorf("its immediate is %#x (present: %v)", c.Imm, has)
	}
	return nil
}

// expectState looks at a queue pair's state: state QP STATE.
func (s *stage) expectState(w *words) error {
	q, err := s.namedQP(w)
	if err != nil {
		return err
	}
	word, err := w.next("a state")
	if err != nil {
		return err
	}
	to, err := states.parse(word)
	if err != nil {
		return err
	}
	var got transport.State
	s.bench.Settle(func() bool {
		got, err = q.nic.State(q.name)
		return err != nil || got == to
	})
	if err != nil {
		return err
	}
	if got != to {
		return fmt.Errorf("expected %s in %v, but it is in %v; the last on the cable:%s", q.name, to, got, s.last())
	}
	return nil
}

// expectEvent takes the next asynchronous event: event NAME [OBJECT].
func (s *stage) expectEvent(w *words) error {
	name, err := w.next("an event")
	if err != nil {
		return err
	}
	typ, err := eventType(name)
	if err != nil {
		return err
	}
	want := Event{Type: typ}
	if len(w.plain) > 0 {
		want.Object, _ = w.next("an object")
	}
	s.bench.Settle(func() bool {
		err = errors.Join(err, s.poll())
		return err != nil || len(s.events) > 0
	})
	if err != nil {
		return err
	}
	if len(s.events) == 0 {
		return fmt.Errorf("expected %v, but there was none; the last on the cable:%s", want, s.last())
	}
	if got := s.events[0]; got.Type != want.Type || want.Object != "" && got.Object != want.Object {
		return fmt.Errorf("expected %v, but there was %v", want, got)
	}
	s.events = s.events[1:]
	return nil
}

// expectDrop says that the NIC has thrown packets away since the last such line: drop REASON [N].
func (s *stage) expectDrop(w *words) error {
	reason, err := w.next("a reason")
	if err != nil {
		return err
	}
	n := uint64(1)
	if len(w.plain) > 0 {
		word, _ := w.next("a number")
		if n, err = parseNumber(word, 32); err != nil {
			return fmt.Errorf("%q %w", word, err)
		}
	}
	s.bench.Settle(nil)
	c := s.under.Counters()
	if c == nil {
		return nil // the NIC does not tell
	}
	for r, count := range c.Drops {
		if transport.DropReason(r).String() != reason {
			continue
		}
		if got := count - s.drops[reason]; got != n {
			return fmt.Errorf("expected drop %s %d, but it is %d; dropped were: %s", reason, n, got, list(s.unexplained()))
		}
		s.drops[reason] += n
		return nil
	}
	return fmt.Errorf("%q is no reason for a drop", reason)
}

// expectCounter looks at a counter as show has it: counter NAME N, or counter nak_sent|nak_received|rx_opcode|tx_opcode|drop KIND N.
func (s *stage) expectCounter(w *words) error {
	if len(w.plain) < 2 {
		return errors.New("a counter's name and value are missing")
	}
	last := len(w.plain) - 1
	name, value := strings.Join(w.plain[:last], " "), w.plain[last]
	w.plain = nil
	n, err := parseNumber(value, 64)
	if err != nil {
		return fmt.Errorf("%q %w", value, err)
	}
	s.bench.Settle(nil)
	c := s.under.Counters()
	if c == nil {
		return nil // the NIC does not tell
	}
	got, err := counter(c, name)
	if err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("expected counter %s %d, but it is %d", name, n, got)
	}
	return nil
}

// counter finds a counter by the name that "softroce show counters" gives it.
func counter(c *nic.Counters, name string) (uint64, error) {
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
		return 0, fmt.Errorf("%q is no counter", name)
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
	return 0, nil // what never occurred is in none of these lists
}

// expectMemory compares memory with data: memory PLACE DATA. Without a length the place is as long as the data.
func (s *stage) expectMemory(w *words) error {
	text := strings.Join(w.plain, " ")
	whole := len(w.plain) > 0 && strings.Contains(w.plain[0], ":")
	p, err := s.placeInside(w)
	if err != nil {
		return err
	}
	d, err := w.next("data")
	if err != nil {
		return err
	}
	want, err := parseData(d)
	if err != nil {
		return err
	}
	if !whole {
		p.length = min(p.length, uint64(len(want)))
	}
	var got []byte
	s.bench.Settle(func() bool {
		got, err = p.region.nic.ReadMemory(p.region.name, p.off, p.length)
		return err != nil || bytes.Equal(got, want)
	})
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("expected memory %s\n    but it holds %s", text, showData(got))
	}
	return nil
}

// cmdIgnore forgets what came so far: ignore packets|completions|events|drops…
func (s *stage) cmdIgnore(w *words) error {
	s.bench.Settle(nil)
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
				for r, n := range c.Drops {
					s.drops[transport.DropReason(r).String()] = n
				}
			}
		default:
			return fmt.Errorf("%q cannot be ignored", what)
		}
	}
	w.plain = nil
	return w.end()
}
