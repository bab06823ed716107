package liveplay_test

import (
	"strings"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/internal/liveplay"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// playResponder plays the responder's side of a fixture without its timing.
func playResponder(t *testing.T, file string, open func(wire.FrameSink) (testbed.Testbed, error)) *liveplay.Report {
	t.Helper()
	r, err := liveplay.File(fixtures+file, open, liveplay.Options{Fast: true, Side: liveplay.Responder})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A live requester does what the captured one did after loss, a NAK and a timeout: it retransmits
// as many packets as the capture shows.
func TestLiveRequesterFollowsCapturedOne(t *testing.T) {
	for _, c := range []struct {
		file     string
		requests int // on the link, if softroce sends them
	}{
		{"vp-rnr.pcap", 9},              // eight RNR NAKs
		{"vp-rnr-multi.pcap", 27},       // the same, three packets each
		{"vp-rnr-exceeded.pcap", 3},     // RNR retry count 2
		{"vp-no-answer.pcap", 12},       // three packets, retry count 3
		{"vp-no-answer-t17.pcap", 3},    // retry count 2
		{"vp-no-answer-retry7.pcap", 8}, // seven retries; the captured one continued
		{"vp-nak-badwrite.pcap", 1},
		{"vp-all-ops.pcap", 24},
		{"vp-psn-wrap.pcap", 5},
	} {
		s := playResponder(t, c.file, testbed.NewSimulated).Streams[0]
		if s.Requests != c.requests || s.Verdict().Compared != c.requests || s.SentAgain > 0 {
			t.Errorf("%s: %d requests, %d compared, %d replies sent again", c.file, s.Requests, s.Verdict().Compared, s.SentAgain)
		}
	}
}

// A modifiedRequester is a testbed whose NIC gets other attributes than the captured one, or whose
// program posts other work requests.
type modifiedRequester struct {
	testbed.Testbed
	modify func(*nic.QPAttr)
	post   func(*transport.SendWR)
}

type modifiedRequesterNIC struct {
	testbed.NIC
	*modifiedRequester
}

func (o *modifiedRequester) NIC(second bool) (testbed.NIC, error) {
	n, err := o.Testbed.NIC(second)
	return modifiedRequesterNIC{n, o}, err
}

func (n modifiedRequesterNIC) ModifyQP(name string, a nic.QPAttr, mask ib.QPAttrMask) error {
	if n.modify != nil && mask&ib.QPMaskTimeout != 0 {
		n.modify(&a)
	}
	return n.NIC.ModifyQP(name, a, mask)
}

func (n modifiedRequesterNIC) PostSend(name string, wr *transport.SendWR) error {
	if n.post != nil {
		n.post(wr)
	}
	return n.NIC.PostSend(name, wr)
}

func shorter(w *transport.SendWR) {
	if len(w.SGEs) > 0 {
		w.SGEs[0].Length--
	}
}

func TestDifferentRequesterIsReported(t *testing.T) {
	for _, c := range []struct {
		what, file string
		modify     func(*nic.QPAttr)
		post       func(*transport.SendWR)
		found      string
	}{
		{what: "a shorter timeout", file: "vp-no-answer-t17.pcap", modify: func(a *nic.QPAttr) { a.Timeout = 12 }, found: "timeout: captured retransmitted after"},
		{what: "more retries", file: "vp-no-answer.pcap", modify: func(a *nic.QPAttr) { a.RetryCount = 5 }, found: "the retry count of 3 is used up"},
		{what: "fewer retries", file: "vp-no-answer.pcap", modify: func(a *nic.QPAttr) { a.RetryCount = 1 }, found: "completion 1 of the send queue: captured of work request 1: transport retry counter exceeded"},
		{what: "fewer RNR retries", file: "vp-rnr.pcap", modify: func(a *nic.QPAttr) { a.RNRRetry = 2 }, found: "RNR retry counter exceeded"},
		{what: "more RNR retries", file: "vp-rnr-exceeded.pcap", modify: func(a *nic.QPAttr) { a.RNRRetry = 7 }, found: "none: it ended with RNR retry counter exceeded"},
		{what: "another PSN", file: "pp-rc-mtu1024.pcap", modify: func(a *nic.QPAttr) { a.SQPSN += 3 }, found: "request"},
		{what: "another length", file: "vp-all-ops.pcap", post: shorter, found: "payload length"},
		{what: "another address", file: "read-bw.pcap", post: func(w *transport.SendWR) { w.RemoteAddr += 8 }, found: "RETH"},
		{what: "another immediate", file: "vp-all-ops.pcap", post: func(w *transport.SendWR) { w.Imm++ }, found: "immediate"},
		{what: "another operand", file: "atomic-faa.pcap", post: func(w *transport.SendWR) { w.CompareAdd++ }, found: "AtomicETH"},
		{what: "another operation", file: "write-bw-rc.pcap", post: func(w *transport.SendWR) { w.Opcode = ib.WRSend }, found: "opcode"},
		{what: "solicited", file: "pp-rc-mtu1024.pcap", post: func(w *transport.SendWR) { w.Flags ^= ib.SendSolicited }, found: "solicited event"},
	} {
		r := playResponder(t, c.file, func(tap wire.FrameSink) (testbed.Testbed, error) {
			b, err := testbed.NewSimulated(tap)
			return &modifiedRequester{b, c.modify, c.post}, err
		})
		if text := r.String(); r.Differences() == 0 || !strings.Contains(text, c.found) {
			t.Errorf("%s: %s", c.what, text)
		}
	}
}

// Packets that change or get lost on the way to the live requester change what it sends.
func TestWrongRequestsAreReported(t *testing.T) {
	for _, c := range []struct{ file, rule, found string }{
		{"write-bw-rc.pcap", "set opcode 0x07 send opcode RC_WRITE_FIRST nth 2", "opcode: captured RC_WRITE_MIDDLE, softroce RC_WRITE_FIRST"},
		{"read-bw.pcap", "set length 17 send kind read nth 2", "RETH"},
		{"vp-nak-badwrite.pcap", "set syndrome 0x61 receive kind nak", "completion 1 of the send queue: captured of work request 1: remote invalid request"},
		{"vp-rnr.pcap", "set syndrome 0x2e receive kind rnr nth 2", "RNR wait: captured 1.28ms, softroce 20.48ms"},
		{"loss-send-resp.pcap", "drop receive kind nak", "packet 40 goes back further"},
		{"reorder-write.pcap", "drop receive kind nak", "after a timeout, softroce after that packet"},
		{"read-bw.pcap", "set opcode 0x0f receive opcode RC_READ_RESPONSE_FIRST nth 2", "completion 2 of the send queue: captured of work request 2: bad response"},
		{"atomic-faa.pcap", "drop receive kind atomic_ack skip 3", "captured of work request 4: transport retry counter exceeded, softroce of work request 4: success"},
		{"write-bw-rc.pcap", "drop send skip 12", "request: captured none"},
	} {
		r := playResponder(t, c.file, faulty(c.rule))
		if text := r.String(); r.Differences() == 0 || !strings.Contains(text, c.found) {
			t.Errorf("%s: %s: %s", c.file, c.rule, text)
		}
	}
}

// A result that differs from what was played is reported.
func TestWrongResultsAreReported(t *testing.T) {
	for _, f := range []string{"read-bw.pcap", "read-lat-5b.pcap", "atomic-faa.pcap"} {
		r := playResponder(t, f, func(tap wire.FrameSink) (testbed.Testbed, error) {
			b, err := testbed.NewSimulated(tap)
			return readCorrupter{b}, err
		})
		if text := r.String(); !strings.Contains(text, "result of work request 1, byte 0") {
			t.Error(text)
		}
	}
}

// A readCorrupter is a testbed whose program reads other data than its NIC has written.
type readCorrupter struct{ testbed.Testbed }

type readCorrupterNIC struct{ testbed.NIC }

func (n readCorrupterNIC) ReadMemory(name string, off, size uint64) ([]byte, error) {
	b, err := n.NIC.ReadMemory(name, off, size)
	b = append([]byte(nil), b...)
	b[0] ^= 1
	return b, err
}

func (g readCorrupter) NIC(second bool) (testbed.NIC, error) {
	n, err := g.Testbed.NIC(second)
	return readCorrupterNIC{n}, err
}

// With the captured timing no work request is posted and no reply sent early.
func TestPlayKeepsCapturedTimingOfReplies(t *testing.T) {
	file := "vp-rnr.pcap"
	ps := load(t, file)
	span := ps[len(ps)-1].Time.Sub(ps[0].Time)
	for _, fast := range []bool{false, true} {
		var clock testbed.Testbed
		_, err := liveplay.File(fixtures+file, func(tap wire.FrameSink) (b testbed.Testbed, err error) {
			clock, err = testbed.NewSimulated(tap)
			return clock, err
		}, liveplay.Options{Fast: fast, Side: liveplay.Responder})
		if err != nil {
			t.Fatal(err)
		}
		if took := clock.Now(); !fast && took < span || fast && took > span+time.Second {
			t.Errorf("fast %v: %v, captured %v", fast, took, span)
		}
	}
}

// A slackTestbed is a simulated one whose clock may differ from the NIC's.
type slackTestbed struct{ testbed.Testbed }

func (slackTestbed) Slack() (early, late time.Duration) { return 10 * time.Millisecond, time.Second }

// A requester whose clock may differ, or is not judged at all, retransmits early without a
// difference, and what follows is compared as if it had waited.
func TestEarlyRetransmissionsAreAccepted(t *testing.T) {
	sooner := func(b testbed.Testbed) testbed.Testbed {
		return &modifiedRequester{b, func(a *nic.QPAttr) { a.Timeout = 12 }, nil}
	}
	slack := func(b testbed.Testbed) testbed.Testbed { return slackTestbed{b} }
	for _, c := range []struct {
		what, file, rule string // the rule replaces the timer of an RNR NAK, 20.48 ms
		wrap             func(testbed.Testbed) testbed.Testbed
		untimed, found   bool
	}{
		{"15.36 ms with a slack of 10 ms", "vp-rnr.pcap", "set syndrome 0x35 receive kind rnr nth 2", slack, false, false},
		{"7.68 ms with a slack of 10 ms", "vp-rnr.pcap", "set syndrome 0x33 receive kind rnr nth 2", slack, false, true},
		{"1.28 ms, untimed", "vp-rnr.pcap", "set syndrome 0x2e receive kind rnr nth 2", nil, true, false},
		{"a shorter timeout, untimed", "vp-no-answer-t17.pcap", "", sooner, true, false},
		{"a shorter timeout", "vp-no-answer-t17.pcap", "", sooner, false, true},
	} {
		r, err := liveplay.File(fixtures+c.file, func(tap wire.FrameSink) (b testbed.Testbed, err error) {
			if c.rule != "" {
				b, err = faulty(c.rule)(tap)
			} else {
				b, err = testbed.NewSimulated(tap)
			}
			if err == nil && c.wrap != nil {
				b = c.wrap(b)
			}
			return b, err
		}, liveplay.Options{Fast: true, Side: liveplay.Responder, Untimed: c.untimed})
		if err != nil {
			t.Fatal(err)
		}
		if found := r.Differences() > 0; found != c.found {
			t.Errorf("%s: %v", c.what, r)
		}
	}
}
