package congestion

import "testing"

// reply has a request answered after d nanoseconds.
func reply(r *RoundTrip, psn uint64, d int64) {
	r.Sent(psn, 1000)
	r.Acknowledged(psn+1, 1000+d)
}

// The values are those of RFC 6298: 1/8 of a reply goes into the mean, 1/4 of its distance from the
// old mean into the deviation.
func TestLimitOfReplies(t *testing.T) {
	var r RoundTrip
	if r.Limit() != 0 {
		t.Errorf("a limit of %d without a reply", r.Limit())
	}
	for i, c := range []struct{ reply, mean, deviation int64 }{
		{80_000, 80_000, 40_000},
		{80_000, 80_000, 30_000},
		{160_000, 90_000, 42_500},
		{90_000, 90_000, 31_875},
		{10_000, 80_000, 43_906},
	} {
		reply(&r, uint64(i), c.reply)
		if want := c.mean + 4*c.deviation; r.Limit() < want-8 || r.Limit() > want+8 {
			t.Errorf("reply %d: a limit of %d, want %d", i, r.Limit(), want)
		}
	}
}

func TestOneRequestIsTimedAtATime(t *testing.T) {
	var r RoundTrip
	r.Sent(10, 0+1)
	r.Sent(20, 500_001)
	// Everything before it.
	if d := r.Acknowledged(10, 600_001); d != 0 || r.Limit() != 0 {
		t.Error("a reply to an earlier request was timed")
	}
	if d := r.Acknowledged(21, 1_000_001); d != 1_000_000 {
		t.Errorf("a round trip of %d, want a millisecond", d)
	}
	if r.Limit() != 3_000_000 {
		t.Errorf("a limit of %d, want one and four halves of a millisecond", r.Limit())
	}
}

// A reply to a request that was sent again without a NAK may be one to its first transmission.
func TestAmbiguousRepliesAreNotTimed(t *testing.T) {
	var r RoundTrip
	r.Sent(10, 1)
	r.Repeated(15)
	r.Sent(14, 1000)
	r.Acknowledged(15, 2000)
	if r.Limit() != 0 {
		t.Error("the reply to a repeated request was timed")
	}
	r.Sent(15, 3000)
	r.WentBack()
	r.Acknowledged(16, 4000)
	if r.Limit() != 0 {
		t.Error("a reply was timed from before the requester went back")
	}
	reply(&r, 16, 5000)
	if r.Limit() != 15_000 {
		t.Errorf("a limit of %d", r.Limit())
	}
}

func TestLongRoundTripsShowAQueue(t *testing.T) {
	for _, c := range []struct {
		least, later int64
		want         bool
	}{
		{20_000, 20_000, false},
		{20_000, 90_000, false}, // a process waits as long for a processor
		{20_000, 110_000, true},
		{100_000, 190_000, false},
		{100_000, 210_000, true},
		{3_000_000, 3_000_000, true}, // all replies came through the queue
	} {
		var r RoundTrip
		reply(&r, 0, c.least)
		for i := range 100 {
			reply(&r, uint64(i+1), c.later)
		}
		if r.Queued() != c.want {
			t.Errorf("replies of %d after one of %d ns: queued %v", c.later, c.least, r.Queued())
		}
	}
}
