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
	"softroce/wire"
)

// A stage is the state of a scenario that is being played.
type script struct {
	testbed    testbed.Testbed
	dut        testbed.NIC // under test
	second     testbed.NIC // nil until the script asks for it
	log        func(string, ...any)
	skip       func(...any) // unwinds the script
	failed     bool
	contextErr func() error // not nil once the scenario is to end early

	untimed       bool     // what comes too soon is not held against the NIC
	missingEvents []string // the asynchronous events that the NIC under test does not give

	qps         map[string]*queuePair
	regions     map[string]*region
	srqs        map[string]uint32 // numbers of shared receive queues of XRC
	names       map[string]bool   // of everything
	nextPeerQPN uint32            // of the next hand-made peer
	srqIDs      uint64            // of receives posted to shared receive queues

	// moment is when the last thing was done or came that the script has told of so far: what within= counts from.
	// In a simulation that is now. floor is the soonest that it can have been, when every packet is on its way for no
	// time at all: what after= counts from, because on a live network the packet before may have come late.
	latest, earliest time.Duration
	chained          bool // the next thing that the script does belongs to the last

	frames      []*capturedFrame
	completions map[queueName][]testbed.Completion
	events      []testbed.Event
	armed       bool              // a completion queue was
	notices     []string          // by the names of completion queues
	drops       map[string]uint64 // by reason, those expected so far
}

// A queuePair is a queue pair as the script knows it.
type queuePair struct {
	name    string
	nic     testbed.NIC
	typ     ib.QPType
	qpn     uint32
	peerQPN uint32 // the peer's
	peer    *queuePair
	attr    nic.QPAttr
	vlan    uint16 // in which it is; 0: none
	sendIDs uint64
	recvIDs uint64
}

type region struct {
	testbed.Region
	name   string
	nic    testbed.NIC
	window ib.MWType // 0: it is no memory window
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

// A frame is a packet that was on the cable of the NIC under test.
type capturedFrame struct {
	at       time.Duration
	p        *capture.Packet // nil: no BTH
	len      int
	from     string // the queue pair that sent it; "": the script
	nic      bool   // a NIC sent it
	consumed bool   // expected, or not to be
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

// other returns the second NIC.
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

// claim makes sure that a name is new.
func (s *script) reserveName(name string) error {
	if s.names[name] {
		return fmt.Errorf("there is a %q already", name)
	}
	if name == "" || strings.ContainsAny(name, "+:=/") {
		return fmt.Errorf("%q cannot be a name", name)
	}
	s.names[name] = true
	return nil
}

func (s *script) qp(name string) (*queuePair, error) {
	if q, ok := s.qps[name]; ok {
		return q, nil
	}
	return nil, fmt.Errorf("there is no queue pair %q; there are %s", name, list(slices.Sorted(maps.Keys(s.qps))))
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// WriteFrame implements wire.FrameSink: what is on the cable is kept and logged.
func (s *script) WriteFrame(ns int64, _ int, b []byte) error {
	f := &capturedFrame{at: time.Duration(ns), len: len(b)}
	rec := capture.Record{No: len(s.frames) + 1, Time: time.Unix(0, ns), LinkType: capture.Ethernet, Length: len(b), Data: slices.Clone(b)}
	if p, err := capture.Parse(rec); err == nil {
		f.p = p
		f.from, f.nic = s.sender(p)
	}
	if _, late := s.testbed.Slack(); late > 0 && f.nic && f.from == "" && f.p.DestQP-s.testbed.PeerQPN() >= testbed.QPNsPerTestbed {
		return nil // another scenario's
	}
	f.consumed = !f.nic || s.isLoopedBack(f)
	s.frames = append(s.frames, f)
	who := f.from
	if !f.nic {
		who = "script"
	}
	s.log("    %s: %v", who, f)
	return nil
}

// comesBack reports whether f is a multicast packet that was seen when it left, and now comes to its own sender.
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

// sender finds the queue pair that sent a packet.
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

// acts notes the time of something that the script does; more says that the next belongs to it, aside that nothing's time
// counts from it.
func (s *script) noteAction(more, aside bool) {
	s.latest = s.testbed.Now()
	if !s.chained && !aside {
		s.earliest = s.latest
	}
	s.chained = more
}

// waiting returns the packets from a queue pair that were not expected yet; name "" means from any.
func (s *script) unexpectedFrames(name string) (l []*capturedFrame) {
	for _, f := range s.frames {
		if !f.consumed && (name == "" || f.from == name) {
			l = append(l, f)
		}
	}
	return l
}

// poll takes what has completed.
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
		if err := errors.Join(err, err2, s.pollNotices(n)); err != nil {
			return err
		}
	}
	return nil
}

// pollNotices takes the notices of completion queues, if any was asked for one.
func (s *script) pollNotices(n testbed.NIC) error {
	if !s.armed {
		return nil
	}
	l, err := n.Notices()
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

// finish looks for what came and was not expected.
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
		return fmt.Errorf("came and was not expected:\n    %s", strings.Join(left, "\n    "))
	}
	return nil
}

// dropped is what a NIC has thrown away, by reason. What rules of the script drop is none of its doing.
func dropped(c *nic.Counters) map[string]uint64 {
	m := map[string]uint64{}
	for _, d := range c.Dropped() {
		if d.Reason != "link_"+wire.DropFault.String() {
			m[d.Reason] = d.Count
		}
	}
	return m
}

// unexplained lists the drops that were not expected.
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

// last returns the newest frames, for people.
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
