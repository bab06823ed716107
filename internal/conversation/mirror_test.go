package conversation_test

import (
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// A mirror port captures each packet twice. The sender does not number its packets, so that a
// packet and one that the network duplicated are the same, and so are their copies.
func TestMirrorCopyIsTheOneAfterTheDelayOfMost(t *testing.T) {
	const µs = time.Microsecond
	for _, c := range []struct {
		name string
		at   []time.Duration // packets with the PSN 0; all others are captured 20 µs apart
		want []int           // of those, the first views
	}{
		{"duplicated before the copy", []time.Duration{0, 2 * µs, 20 * µs, 22 * µs}, []int{0, 1}},
		{"twice", []time.Duration{0, 2 * µs, 4 * µs, 20 * µs, 22 * µs, 24 * µs}, []int{0, 1, 2}},
		{"duplicated when the copy is made", []time.Duration{0, 20 * µs, 20 * µs, 40 * µs}, []int{0, 2}},
		{"duplicated after the copy", []time.Duration{0, 20 * µs, 30 * µs, 50 * µs}, []int{0, 2}},
		{"copies late and early", []time.Duration{0, 9 * µs, 27 * µs, 28 * µs}, []int{0, 1}},
		{"sent again after a timeout", []time.Duration{0, 20 * µs, 5 * time.Millisecond, 5*time.Millisecond + 20*µs}, []int{0, 2}},
	} {
		var sends []sent
		for _, at := range c.at {
			sends = append(sends, sent{op: packet.SendOnly, at: at})
		}
		for psn := range uint32(10) {
			s := sent{op: packet.SendOnly, psn: psn + 1, at: time.Second}
			copied := s
			copied.at += 20 * µs
			sends = append(sends, s, copied)
		}
		var got []int
		for _, r := range streamOf(t, sends...).Requests {
			if r.BTH.PSN == 0 {
				got = append(got, r.No-1)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the first views of PSN 0 are %v, want %v", c.name, got, c.want)
		}
		if got := firstViews(t, sends); !slices.Equal(got, c.want) {
			t.Errorf("%s: the first views of PSN 0 are %v one packet at a time, want %v", c.name, got, c.want)
		}
	}
}

// firstViews returns the indexes of packets with the PSN 0 that are not copies in a second pass.
func firstViews(t *testing.T, sends []sent) (got []int) {
	t.Helper()
	var ps capture.Packets
	for i, s := range sends {
		p := s.frame(t, 1)
		p.No = i
		ps = append(ps, p)
	}
	slices.SortStableFunc(ps, func(a, b *capture.Packet) int { return a.Time.Compare(b.Time) })
	first := conversation.NewMirror()
	for _, p := range ps {
		first.IsCopy(p)
	}
	second := first.SecondPass()
	for _, p := range ps {
		if !second.IsCopy(p) && p.PSN == 0 {
			got = append(got, p.No)
		}
	}
	return got
}

// Packets that a NIC sends again, or that the network duplicates, are among others that have no
// copy.
func TestMirrorPortCopiesNearlyEveryPacket(t *testing.T) {
	for _, c := range []struct {
		copied, alone int
		late          time.Duration
		want          bool
	}{
		{0, 5, 0, false},
		{1, 0, time.Microsecond, false},
		{2, 0, time.Microsecond, true},
		{8, 1, time.Microsecond, false},
		{20, 2, time.Microsecond, true},
		{20, 3, time.Microsecond, false},
		{20, 0, 999 * time.Microsecond, true},
		{20, 0, time.Millisecond, false},
	} {
		m := conversation.NewMirror()
		add := func(s sent) { m.IsCopy(s.frame(t, 1)) }
		for i := range c.copied + c.alone {
			at := time.Duration(i) * time.Second
			add(sent{op: packet.SendOnly, psn: uint32(i), at: at})
			if i < c.copied {
				add(sent{op: packet.SendOnly, psn: uint32(i), at: at + c.late})
			}
		}
		if got := m.SecondPass() != nil; got != c.want {
			t.Errorf("%d packets with copies %v later, %d without: mirror port %v, want %v", c.copied, c.late, c.alone, got, c.want)
		}
	}
}
