package liveplay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/wire"
)

// faulty opens a testbed with fault rules on the link of its simulated NIC.
func faulty(rules ...string) func(wire.FrameSink) (testbed.Testbed, error) {
	return func(tap wire.FrameSink) (testbed.Testbed, error) {
		b, err := testbed.NewSimulated(tap)
		for _, r := range rules {
			if err == nil {
				_, err = b.NIC(false)
			}
			if err == nil {
				err = b.Fault(r)
			}
		}
		return b, err
	}
}

// Packets that the live network loses are retransmitted, and cause no difference.
func TestLossInLiveNetworkIsNoDifference(t *testing.T) {
	files := []string{"write-bw-ackreq.pcap", "write-bw-long.pcap", "read-bw.pcap", "pp-rc-mtu1024.pcap", "vp-all-ops.pcap",
		"atomic-faa.pcap", "loss-atomic.pcap", "loss-read-resp.pcap", "loss-wire-write.pcap", "loss-pp-rc.pcap", "vp-pipeline.pcap",
		"cm-rping.pcap", "dup-read.pcap", "write-lat-mtu256.pcap"}
	again := 0
	for _, c := range [][]string{
		{"seed %d", "drop receive chance 2%%"},
		{"seed %d", "drop send chance 2%%"},
		{"seed %d", "drop chance 2%%", "corrupt chance 1%%"},
	} {
		for seed := range 4 {
			for _, f := range files {
				rules := fmt.Sprintf(strings.Join(c, "\n"), seed)
				r, err := liveplay.File(fixtures+f, faulty(rules), liveplay.Options{Fast: true})
				if err != nil {
					t.Fatalf("%s, %s: %v", f, rules, err)
				}
				if r.Differences() > 0 {
					t.Errorf("%s: %v", rules, r)
				}
				for _, s := range r.Streams {
					again += s.SentAgain
				}
			}
		}
	}
	if again == 0 {
		t.Error("nothing was lost")
	}
}

// In these runs the live requester goes back to a PSN that the player does not expect: what it went
// back to before was lost, and answered meanwhile. Its retries must not run out.
func TestLiveRequesterGoesBackBeyondLostRequests(t *testing.T) {
	for _, seed := range []int{96, 105, 130} {
		r, err := liveplay.File(fixtures+"loss-atomic.pcap", faulty(fmt.Sprintf("seed %d\ndrop chance 2%%", seed)), liveplay.Options{Fast: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Differences() > 0 {
			t.Errorf("seed %d: %v", seed, r)
		}
	}
}

// An orderChecker checks that no other request is sent before the response to a repeated atomic, or
// before that response may have been lost.
type orderChecker struct {
	t       *testing.T
	rules   string
	sent    map[uint32]bool
	psn     uint32 // of the last request
	ns      int64  // when it was sent
	waiting bool   // it was sent again, and has no response yet
}

// WriteFrame implements wire.FrameSink.
func (c *orderChecker) WriteFrame(ns int64, _ int, b []byte) error {
	p, err := capture.Parse(capture.Record{No: 1, LinkType: capture.Ethernet, Length: len(b), Data: b})
	switch {
	case err != nil:
	case p.Opcode == packet.FetchAdd:
		if wait := time.Duration(ns - c.ns); c.waiting && wait < 100*time.Millisecond {
			c.t.Errorf("%s: PSN %d was sent %v after %d was sent again, which has no response yet", c.rules, p.BTH.PSN, wait, c.psn)
		}
		c.waiting, c.psn, c.ns = c.sent[p.BTH.PSN], p.BTH.PSN, ns
		c.sent[p.BTH.PSN] = true
	case p.Opcode == packet.AtomicAcknowledge && p.BTH.PSN == c.psn:
		c.waiting = false
	}
	return nil
}

// A responder may reorder its responses to repeated atomics, and send one response to two
// transmissions of a request. So nothing is sent before the response to a repeated one, whether a
// NAK or a timeout was the cause.
func TestRepeatedAtomicsAreAnsweredOneByOne(t *testing.T) {
	again := 0
	for seed := range 20 {
		c := &orderChecker{t: t, rules: fmt.Sprintf("seed %d\ndrop chance 2%%\ndelay 1ms receive", seed), sent: map[uint32]bool{}}
		r, err := liveplay.File(fixtures+"atomic-faa.pcap", faulty(c.rules), liveplay.Options{Fast: true, Side: liveplay.Requester, Tap: c})
		if err != nil || r.Differences() > 0 {
			t.Fatalf("%s: %v %v", c.rules, r, err)
		}
		again += r.Streams[0].SentAgain
	}
	if again == 0 {
		t.Error("nothing was sent again")
	}
}

// Replies of the live NIC that differ are reported.
func TestWrongRepliesAreReported(t *testing.T) {
	for _, c := range []struct{ file, rule, field string }{
		{"pp-rc-mtu1024.pcap", "set msn 77 send kind ack nth 3", "MSN"},
		{"pp-rc-mtu1024.pcap", "set syndrome 0x62 send kind ack nth 3", "reply"},
		{"write-bw-rc.pcap", "set syndrome 0x2a send kind ack nth 2", "reply"}, // RNR NAK to a WRITE
		{"pp-rc-mtu1024.pcap", "set syndrome 0x2a send kind ack nth 2", "reply"},
		{"read-bw.pcap", "set opcode 0x0f send opcode RC_READ_RESPONSE_MIDDLE nth 4", "opcode"},
		{"vp-nak-badwrite.pcap", "set syndrome 0x61 send kind nak nth 1", "syndrome"},
		{"vp-rnr.pcap", "set syndrome 0x25 send kind rnr nth 2", "syndrome"},
		{"loss-write-resp.pcap", "set psn 5 send kind nak nth 1", "reply"},
	} {
		r, err := liveplay.File(fixtures+c.file, faulty(c.rule), liveplay.Options{Fast: true})
		if err != nil {
			t.Fatal(err)
		}
		if text := r.String(); r.Differences() == 0 || !strings.Contains(text, c.field+": captured") {
			t.Errorf("%s: %s: %s", c.file, c.rule, text)
		}
	}
}

// A writeCorrupter is a testbed whose memory differs from what the player wrote.
type writeCorrupter struct{ testbed.Testbed }

type writeCorrupterNIC struct{ testbed.NIC }

func (n writeCorrupterNIC) WriteMemory(name string, off uint64, b []byte) error {
	b = slices.Clone(b)
	b[len(b)/2] ^= 4
	return n.NIC.WriteMemory(name, off, b)
}

func (b writeCorrupter) NIC(second bool) (testbed.NIC, error) {
	n, err := b.Testbed.NIC(second)
	return writeCorrupterNIC{n}, err
}

// A NIC that reads other data than its memory holds is reported.
func TestWrongDataIsReported(t *testing.T) {
	for _, f := range []string{"read-bw.pcap", "read-lat-5b.pcap", "atomic-faa.pcap", "cm-rping.pcap"} {
		r, err := liveplay.File(fixtures+f, func(tap wire.FrameSink) (testbed.Testbed, error) {
			b, err := testbed.NewSimulated(tap)
			return writeCorrupter{b}, err
		}, liveplay.Options{Fast: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Differences() == 0 {
			t.Errorf("%v", r)
		}
	}
}

func TestSilentNICIsError(t *testing.T) {
	_, err := liveplay.File(fixtures+"pp-rc-mtu1024.pcap", faulty("drop send"), liveplay.Options{Fast: true})
	if !errors.Is(err, liveplay.ErrSilent) {
		t.Error(err)
	}
	r, err := liveplay.File(fixtures+"pp-rc-mtu1024.pcap", faulty("drop send skip 3"), liveplay.Options{Fast: true})
	if err != nil || r.Differences() == 0 {
		t.Errorf("%v %v", err, r)
	}
}

func TestUnplayableCaptureIsError(t *testing.T) {
	for _, f := range []string{"pp-ud.pcap", "send-bw-ud.pcap", "cm-mckey.pcap"} {
		if _, err := liveplay.File(fixtures+f, testbed.NewSimulated, liveplay.Options{}); !errors.Is(err, replay.ErrNothing) {
			t.Errorf("%s: %v", f, err)
		}
	}
	ps := load(t, "write-bw-rc.pcap")
	for _, from := range []int{1, 9, 10, 20} {
		var part capture.Packets
		for i, p := range ps[from:] {
			q := *p
			q.No = i + 1
			part = append(part, &q)
		}
		if _, err := liveplay.Packets(part, testbed.NewSimulated, liveplay.Options{Side: liveplay.Requester}); !errors.Is(err, replay.ErrMiddle) {
			t.Errorf("from packet %d: %v", from+1, err)
		}
		// The state of the responder does not matter to a requester.
		r, err := liveplay.Packets(part, testbed.NewSimulated, liveplay.Options{Fast: true})
		if err != nil || r.Differences() > 0 || len(r.Left) != 1 || len(r.Streams) != 1 || r.Streams[0].Side != liveplay.Responder {
			t.Errorf("from packet %d: %v %v", from+1, r, err)
		}
	}
}

// With the captured timing no packet is sent early.
func TestPlayKeepsCapturedTiming(t *testing.T) {
	file := "vp-rnr.pcap" // 280 ms each of eight RNR NAKs
	ps := load(t, file)
	span := ps[len(ps)-2].Time.Sub(ps[0].Time)
	for _, fast := range []bool{false, true} {
		var clock testbed.Testbed
		_, err := liveplay.File(fixtures+file, func(tap wire.FrameSink) (b testbed.Testbed, err error) {
			clock, err = testbed.NewSimulated(tap)
			return clock, err
		}, liveplay.Options{Fast: fast})
		if err != nil {
			t.Fatal(err)
		}
		if took := clock.Now(); !fast && took < span || fast && took > time.Second/2 {
			t.Errorf("fast %v: %v, captured %v", fast, took, span)
		}
	}
}
