package conversation_test

import (
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

func TestIdentificationsShowLatePackets(t *testing.T) {
	const unknown, onTime, late = conversation.LatenessUnknown, conversation.OnTime, conversation.Late
	for _, c := range []struct {
		name    string
		ids     []uint16
		want    []conversation.Lateness
		countUp bool
	}{
		{"counted by one", []uint16{7, 8, 9, 10}, []conversation.Lateness{onTime, onTime, onTime, onTime}, true},
		{"counted with others in between", []uint16{7, 90, 400, 9000}, []conversation.Lateness{onTime, onTime, onTime, onTime}, true},
		{"counted across the wrap", []uint16{0xfffe, 0xffff, 0, 1}, []conversation.Lateness{onTime, onTime, onTime, onTime}, true},
		{"too few to tell", []uint16{7, 8, 9}, []conversation.Lateness{onTime, onTime, onTime}, false},
		{"swapped", []uint16{7, 9, 8, 10, 11}, []conversation.Lateness{onTime, onTime, late, onTime, onTime}, true},
		{"swapped across the wrap", []uint16{0xfffe, 0, 0xffff, 1, 2}, []conversation.Lateness{onTime, onTime, late, onTime, onTime}, true},
		{"duplicated", []uint16{7, 8, 8, 9, 10}, []conversation.Lateness{onTime, onTime, unknown, onTime, onTime}, true},
		{"late as far as reordering explains", []uint16{2000, 2001, 2002, 2003, 979}, []conversation.Lateness{onTime, onTime, onTime, onTime, late}, true},
		{"back further than that", []uint16{2000, 2001, 2002, 2003, 978}, []conversation.Lateness{onTime, onTime, onTime, onTime, onTime}, false},
		{"constant", []uint16{5, 5, 5, 5}, []conversation.Lateness{onTime, unknown, unknown, unknown}, false},
		{"mostly repeated", []uint16{5, 5, 5, 6, 6, 7}, []conversation.Lateness{onTime, unknown, unknown, onTime, unknown, onTime}, false},
	} {
		var ids conversation.Identifications
		var got []conversation.Lateness
		for i, id := range c.ids {
			_, l := ids.Add(sent{op: packet.SendOnly, id: id}.frame(t, i+1))
			got = append(got, l)
		}
		if !slices.Equal(got, c.want) || ids.CountUp() != c.countUp {
			t.Errorf("%s: %v, count up %v; want %v, %v", c.name, got, ids.CountUp(), c.want, c.countUp)
		}
	}
}

func TestIdentificationsAreUnwrapped(t *testing.T) {
	var ids conversation.Identifications
	first, _ := ids.Add(sent{op: packet.SendOnly, id: 0xffff}.frame(t, 1))
	for i, c := range []struct {
		id   uint16
		want int64
	}{{1, 2}, {0, 1}, {2, 3}, {0xfffd, -2}} {
		if got, _ := ids.Add(sent{op: packet.SendOnly, id: c.id}.frame(t, i+2)); got-first != c.want {
			t.Errorf("Identification %#x is %d after the first, want %d", c.id, got-first, c.want)
		}
	}
}

func TestCopyIsToldFromRetransmission(t *testing.T) {
	first := sent{op: packet.SendOnly, psn: 5, id: 9, payload: 4, at: time.Second}
	for _, c := range []struct {
		name     string
		change   func(s *sent)
		numbered bool
		want     bool
	}{
		{"at once", func(*sent) {}, false, true},
		{"just before the shortest timeout", func(s *sent) { s.at += conversation.MinTimeout - 1 }, false, true},
		{"at the shortest timeout", func(s *sent) { s.at += conversation.MinTimeout }, false, false},
		{"after the shortest wait for an RNR NAK", func(s *sent) { s.at += 10 * time.Microsecond }, false, false},
		{"by a clock that went back", func(s *sent) { s.at-- }, false, false},
		{"later, numbered", func(s *sent) { s.at += time.Millisecond }, true, true},
		{"with the next number", func(s *sent) { s.id++ }, true, false},
		{"with another number at once", func(s *sent) { s.id++ }, false, false},
		{"with another PSN", func(s *sent) { s.psn++ }, true, false},
		{"with AckReq", func(s *sent) { s.ackReq = true }, true, false},
		{"with another payload", func(s *sent) { s.payload = 8 }, true, false},
	} {
		again := first
		c.change(&again)
		a, b := conversation.FingerprintOf(first.frame(t, 1)), conversation.FingerprintOf(again.frame(t, 2))
		if got := b.IsCopyOf(a, c.numbered); got != c.want {
			t.Errorf("%s: a copy: %v, want %v", c.name, got, c.want)
		}
	}
	if f := conversation.FingerprintOf(first.frame(t, 1)); f.IsZero() || !(conversation.Fingerprint{}).IsZero() {
		t.Error("a packet has the fingerprint of no packet, or the reverse")
	}
}

// What the network may change does not change the fingerprint.
func TestFingerprintIgnoresHopLimitAndECN(t *testing.T) {
	p := sent{op: packet.SendOnly, psn: 5, id: 9}.frame(t, 1)
	a := p.Addressing
	a.HopLimit, a.TClass = a.HopLimit-1, 3
	var tx packet.Tx
	tx.Set(&p.Header)
	q, err := capture.Parse(capture.Record{No: 2, Time: p.Time, LinkType: capture.Ethernet, Data: packet.AppendFrame(nil, &a, &tx)})
	if err != nil {
		t.Fatal(err)
	}
	if f := conversation.FingerprintOf(q); !f.IsCopyOf(conversation.FingerprintOf(p), true) {
		t.Error("a router's copy has another fingerprint")
	}
}

// numbers returns the numbers of packets in the capture.
func numbers(ts []*conversation.Transmission) (nos []int) {
	for _, t := range ts {
		nos = append(nos, t.No)
	}
	return nos
}

func TestRequestsAreInTheOrderInWhichTheyWereSent(t *testing.T) {
	send := func(psn uint32, id uint16, at time.Duration) sent {
		return sent{op: packet.SendOnly, psn: psn, id: id, at: at}
	}
	for _, c := range []struct {
		name    string
		packets []sent
		sent    []int // numbers of the packets
		before  []int // SentBefore of each
	}{
		{"in order", []sent{send(1, 1, 0), send(2, 2, 1), send(3, 3, 2), send(4, 4, 3)}, []int{1, 2, 3, 4}, []int{0, 1, 2, 3}},
		{"swapped", []sent{send(1, 1, 0), send(3, 3, 1), send(2, 2, 2), send(4, 4, 3), send(5, 5, 4)}, []int{1, 3, 2, 4, 5}, []int{0, 1, 1, 3, 4}},
		{"duplicated much later", []sent{send(1, 1, 0), send(2, 2, 1), send(3, 3, 2), send(4, 4, 3), send(2, 2, time.Second)},
			[]int{1, 2, 3, 4}, []int{0, 1, 2, 3}},
		{"retransmitted", []sent{send(1, 1, 0), send(2, 2, 1), send(3, 3, 2), send(4, 4, 3), send(2, 5, 4)}, []int{1, 2, 3, 4, 5}, []int{0, 1, 2, 3, 4}},
		{"without numbers, swapped", []sent{send(1, 0, 0), send(3, 0, 1), send(2, 0, 2)}, []int{1, 2, 3}, []int{0, 1, 2}},
		{"without numbers, duplicated", []sent{send(1, 0, 0), send(2, 0, 1), send(2, 0, 8000), send(3, 0, 9000)}, []int{1, 2, 4}, []int{0, 1, 3}},
		{"without numbers, retransmitted after a timeout", []sent{send(1, 0, 0), send(2, 0, 1), send(2, 0, 9000)}, []int{1, 2, 3}, []int{0, 1, 2}},
		{"one number for different packets", []sent{send(1, 1, 0), send(2, 2, 1), send(3, 3, 2), send(4, 4, 3), send(5, 3, 4)},
			[]int{1, 2, 3, 4, 5}, []int{0, 1, 2, 3, 4}},
	} {
		s := streamOf(t, c.packets...)
		var before []int
		for _, e := range s.Sent {
			before = append(before, e.SentBefore)
		}
		if !slices.Equal(numbers(s.Sent), c.sent) || !slices.Equal(before, c.before) {
			t.Errorf("%s: sent %v, before the indexes %v; want %v, %v", c.name, numbers(s.Sent), before, c.sent, c.before)
		}
		copies := 0
		for _, e := range s.Requests {
			copies += map[bool]int{true: 1}[e.Copy]
		}
		if copies != len(c.packets)-len(c.sent) {
			t.Errorf("%s: %d copies of %d packets", c.name, copies, len(c.packets))
		}
	}
}
