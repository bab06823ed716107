package conversation_test

import (
	"slices"
	"testing"
	"time"

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
	}
}
