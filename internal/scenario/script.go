package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"softroce/capture"
	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
)

// A script is the state of a running scenario.
type script struct {
	testbed    testbed.Testbed
	dut        testbed.NIC // the device under test
	second     testbed.NIC // nil until the script uses it
	log        func(string, ...any)
	skip       func(...any) // ends the script by panicking
	failed     bool
	commands   int          // how many were executed
	contextErr func() error // the error of the context

	untimed       bool     // do not fail on arrivals that are too early
	missingEvents []string // asynchronous events that the NIC under test does not generate

	qps         map[string]*queuePair
	regions     map[string]*region
	srqs        map[string]uint32 // numbers of XRC shared receive queues
	names       map[string]bool   // of all objects
	nextPeerQPN uint32            // of the next queue pair that the script plays
	srqIDs      uint64            // the last work request ID used on shared receive queues

	// latest is the time of the last action or expected arrival; within= counts from it. earliest
	// is the earliest time that it can have had if packets took no time on the network; after=
	// counts from it, because on a live network the previous packet may have been late. In a
	// simulation both are the same.
	latest, earliest time.Duration
	chained          bool // the next action counts as one with the last

	frames      []*capturedFrame
	completions map[queueName][]testbed.Completion
	events      []testbed.Event
	armed       bool              // a completion queue was armed
	notices     []string          // completion events: names of completion queues
	drops       map[string]uint64 // expected drops so far, by reason
}

// A queuePair is a queue pair that the script created.
type queuePair struct {
	name    string
	nic     testbed.NIC
	typ     ib.QPType
	qpn     uint32
	peerQPN uint32 // number of the peer's queue pair
	attr    nic.QPAttr
	vlan    uint16 // VLAN of the queue pair's GID; 0: none
	network packet.Network
	sendIDs uint64
	recvIDs uint64
}

type region struct {
	testbed.Region
	name   string
	nic    testbed.NIC
	window ib.MWType // 0: not a memory window
}

type queueName struct {
	qp   string
	recv bool
}

func (q queueName) String() string {
	if q.recv {
		return q.qp + " recv"
	}
	return q.qp + " send"
}

// A capturedFrame is a frame on the link of the NIC under test.
type capturedFrame struct {
	at       time.Duration
	p        *capture.Packet // nil: the frame has no BTH
	len      int
	from     string // name of the sending queue pair, or empty for the script
	nic      bool   // sent by a NIC
	consumed bool   // expected already, or need not be expected
}

func (f *capturedFrame) String() string {
	if f.p == nil {
		return fmt.Sprintf("%v frame of %d bytes without a BTH", f.at, f.len)
	}
	return string(f.p.AppendText(nil, time.Unix(0, 0)))
}

func newScript() *script {
	return &script{
		log: func(string, ...any) {}, contextErr: func() error { return nil }, qps: map[string]*queuePair{}, regions: map[string]*region{}, srqs: map[string]uint32{}, names: map[string]bool{},
		completions: map[queueName][]testbed.Completion{}, drops: map[string]uint64{},
	}
}

func (s *script) open(b testbed.Testbed) (err error) {
	s.testbed = b
	s.nextPeerQPN = b.PeerQPN()
	s.dut, err = b.NIC(false)
	return err
}

// secondNIC returns the second NIC.
func (s *script) secondNIC() (testbed.NIC, error) {
	if s.second != nil {
		return s.second, nil
	}
	n, err := s.testbed.NIC(true)
	if err == nil {
		s.second = n
	}
	return n, err
}

// reserveName checks that a name is valid and unused, and reserves it.
func (s *script) reserveName(name string) error {
	if s.names[name] {
		return fmt.Errorf("the name %q is in use", name)
	}
	if name == "" || strings.ContainsAny(name, "+:=/") {
		return fmt.Errorf("invalid name %q: it must not be empty or contain any of +:=/", name)
	}
	s.names[name] = true
	return nil
}

func (s *script) qp(name string) (*queuePair, error) {
	if q, ok := s.qps[name]; ok {
		return q, nil
	}
	return nil, fmt.Errorf("no queue pair %q (have: %s)", name, list(slices.Sorted(maps.Keys(s.qps))))
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// WriteFrame implements wire.FrameSink. It stores and logs a frame on the link.
func (s *script) WriteFrame(ns int64, _ int, b []byte) error {
	f := &capturedFrame{at: time.Duration(ns), len: len(b)}
	rec := capture.Record{No: len(s.frames) + 1, Time: time.Unix(0, ns), LinkType: capture.Ethernet, Length: len(b), Data: slices.Clone(b)}
	if p, err := capture.Parse(rec); err == nil {
		f.p = p
		f.from, f.nic = s.sender(p)
	}
	if _, late := s.testbed.Slack(); late > 0 && f.nic && f.from == "" && f.p.DestQP-s.testbed.PeerQPN() >= testbed.QPNsPerTestbed {
		return nil // belongs to another scenario on the same link
	}
	f.consumed = !f.nic || s.isLoopedBack(f)
	s.frames = append(s.frames, f)
	sender := f.from
	if !f.nic {
		sender = "script"
	}
	s.log("    %s: %v", sender, f)
	return nil
}

// isLoopedBack reports whether f is a multicast packet that was already captured when it was sent,
// and now returns to its sender.
func (s *script) isLoopedBack(f *capturedFrame) bool {
	if f.p == nil || !f.p.Dst.IsMulticast() {
		return false
	}
	for _, g := range s.frames {
		if g.p != nil && g.p.Dst == f.p.Dst && g.p.Src == f.p.Src && g.p.DETH.SrcQP == f.p.DETH.SrcQP && g.p.PSN == f.p.PSN {
			return true
		}
	}
	return false
}

// sender returns the queue pair that sent a packet.
func (s *script) sender(p *capture.Packet) (name string, isNIC bool) {
	for _, q := range s.qps {
		if p.Src != q.nic.Addr() {
			continue
		}
		isNIC = true
		if q.typ == ib.QPTypeUD && p.DETH.SrcQP == q.qpn || q.typ != ib.QPTypeUD && p.BTH.DestQP == q.peerQPN {
			return q.name, true
		}
	}
	return "", isNIC
}

// noteAction records the time of an action of the script. more means that the next action counts as
// one with it, aside that no timing counts from it.
func (s *script) noteAction(more, aside bool) {
	s.latest = s.testbed.Now()
	if !s.chained && !aside {
		s.earliest = s.latest
	}
	s.chained = more
}

// unexpectedFrames returns the packets of a queue pair that have not been expected yet. An empty
// name means all queue pairs.
func (s *script) unexpectedFrames(name string) (l []*capturedFrame) {
	for _, f := range s.frames {
		if !f.consumed && (name == "" || f.from == name) {
			l = append(l, f)
		}
	}
	return l
}

// poll collects completions and events.
func (s *script) poll() error {
	for _, n := range s.nics() {
		l, err := n.Completions()
		for _, c := range l {
			k := queueName{c.QP, c.Recv}
			s.completions[k] = append(s.completions[k], c)
			s.log("    %s", completionText(c))
		}
		ev, err2 := n.Events()
		for _, e := range ev {
			s.events = append(s.events, e)
			s.log("    %s", eventText(e))
		}
		if err := errors.Join(err, err2, s.pollCompletionEvents(n)); err != nil {
			return err
		}
	}
	return nil
}

// pollCompletionEvents collects completion events, if any completion queue was armed.
func (s *script) pollCompletionEvents(n testbed.NIC) error {
	if !s.armed {
		return nil
	}
	l, err := n.CompletionEvents()
	for _, cq := range l {
		s.notices = append(s.notices, cq)
		s.log("    notice %s", cq)
	}
	return err
}

func (s *script) nics() []testbed.NIC {
	if s.second != nil {
		return []testbed.NIC{s.dut, s.second}
	}
	return []testbed.NIC{s.dut}
}

func completionText(c testbed.Completion) string {
	s := fmt.Sprintf("completion %v %d %s", queueName{c.QP, c.Recv}, c.ID, statusName(c.Status))
	if c.Status != ib.WCSuccess {
		return s
	}
	s += fmt.Sprintf(" opcode=%s byte_len=%d", wcOpcodes.name(c.Opcode), c.ByteLen)
	if c.Flags&ib.WCWithImm != 0 {
		s += fmt.Sprintf(" imm=%#x", c.Imm)
	}
	if c.Flags&ib.WCWithInv != 0 {
		s += fmt.Sprintf(" invalidated=%#x", c.Imm)
	}
	return s
}

func eventText(e testbed.Event) string {
	return strings.TrimSpace(fmt.Sprintf("event %v %s", e.Type, e.Object))
}

// checkLeftovers fails if anything was reported and not expected.
func (s *script) checkLeftovers() error {
	s.testbed.Settle(nil)
	if err := s.poll(); err != nil {
		return err
	}
	var left []string
	for _, f := range s.unexpectedFrames("") {
		left = append(left, f.String())
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.completions), func(a, b queueName) int {
		return strings.Compare(a.String(), b.String())
	}) {
		for _, c := range s.completions[k] {
			left = append(left, completionText(c))
		}
	}
	for _, cq := range s.notices {
		left = append(left, "notice "+cq)
	}
	for _, e := range s.events {
		left = append(left, eventText(e))
	}
	left = append(left, s.unexpectedDrops()...)
	if len(left) > 0 {
		return fmt.Errorf("not expected:\n    %s", strings.Join(left, "\n    "))
	}
	return nil
}

// dropped returns the packets that a NIC dropped, by reason, without those that rules of the script
// dropped.
func dropped(c *nic.Counters) map[string]uint64 {
	m := map[string]uint64{}
	for _, d := range c.Dropped() {
		if d.Reason != "link_"+wire.DropFault.String() {
			m[d.Reason] = d.Count
		}
	}
	return m
}

// unexpectedDrops lists the drops that were not expected.
func (s *script) unexpectedDrops() (l []string) {
	c := s.dut.Counters()
	if c == nil {
		return nil
	}
	all := dropped(c)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := all[name]; n > s.drops[name] {
			l = append(l, fmt.Sprintf("drop %s %d", name, n-s.drops[name]))
		}
	}
	return l
}

// recentFrames formats the most recent frames.
func (s *script) recentFrames() string {
	const n = 6
	var b strings.Builder
	for _, f := range s.frames[max(0, len(s.frames)-n):] {
		fmt.Fprintf(&b, "\n    %v", f)
	}
	if b.Len() == 0 {
		return "\n    no packet so far"
	}
	return b.String()
}
