package wire

import (
	"slices"
	"testing"
	"time"
)

// shapedPair returns a link at addrA with a shape, and its peer.
func shapedPair(s Shape) (*ShapedLink, *FabricLink) {
	f := NewFabric()
	owner := new(int)
	return NewShapedLink(f.NewLink(owner, addrA), s), f.NewLink(owner, addrB)
}

// stream sends n packets from one link to the other at their deadlines, starting at a time. It
// returns when each arrived, in order.
func stream(t *testing.T, from, to Link, path *Path, n int, start int64) (arrived []int64) {
	t.Helper()
	payload := make([]byte, 4096)
	var waiting []TxFrame
	for i := range n {
		waiting = append(waiting, frame(path, uint32(i), payload))
	}
	var batch [16]RxFrame
	for now := start; len(arrived) < n; {
		k, err := from.Send(now, waiting)
		if err != nil {
			t.Fatal(err)
		}
		waiting = waiting[k:]
		if _, err := from.Receive(now, nil); err != nil {
			t.Fatal(err)
		}
		for {
			k, err := to.Receive(now, batch[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range batch[:k] {
				if got := psns(t, []RxFrame{f})[0]; got != uint32(len(arrived)) {
					t.Fatalf("packet %d arrived, want %d", got, len(arrived))
				}
				arrived = append(arrived, now)
			}
			if k == 0 {
				break
			}
		}
		next := earlier(from.NextDeadline(), to.NextDeadline())
		if next == 0 && len(arrived) < n {
			t.Fatalf("%d packets have arrived, and nothing is due", len(arrived))
		}
		now = max(now+1, next)
	}
	return arrived
}

func TestShapedLinkHasItsRateInBothDirections(t *testing.T) {
	const packets = 1000
	for _, rate := range []int64{100e6, 1e9, 25e9, 400e9} {
		for _, delay := range []time.Duration{0, 5 * time.Microsecond} {
			for _, sends := range []bool{true, false} {
				shaped, peer := shapedPair(Shape{Rate: rate, Delay: delay})
				from, to, path := Link(shaped), Link(peer), aToB
				if !sends {
					from, to, path = peer, shaped, bToA
				}
				const start = 1e9
				at := stream(t, from, to, path, packets, start)
				f := frame(path, 0, make([]byte, 4096))
				bytes := float64(packets * frameLen(&f))
				want := bytes * 8e9 / float64(rate)
				burst := shapeBurst * 8e9 / float64(rate)
				took := float64(at[packets-1]-start) - float64(delay)
				if took < want-2*burst || took > want+2*burst {
					t.Errorf("rate %v, delay %v, sends %t: %.0f ns, want %.0f and at most two bursts of %.0f less or more", rate, delay, sends, took, want, burst)
				}
				if first := at[0] - start; first < int64(delay) || first > int64(delay)+1 {
					t.Errorf("rate %v, delay %v, sends %t: the first packet took %d ns", rate, delay, sends, first)
				}
				// No more than a burst, and the packet that exceeds it, arrive at one time.
				for i := 0; i < packets; {
					k := i
					for k < packets && at[k] == at[i] {
						k++
					}
					if n := (k - i) * frameLen(&f); n > 2*shapeBurst {
						t.Fatalf("rate %v, delay %v, sends %t: %d bytes arrive at once", rate, delay, sends, n)
					}
					i = k
				}
			}
		}
	}
}

// An offerer sends packets from one link to another as an engine does.
type offerer struct {
	t        *testing.T
	from, to Link
	path     *Path
	payload  []byte
	more     bool // there is more to send than each step offers
	again    bool // each step calls Receive twice
	psn      uint32
}

// step receives, offers n packets, and returns how many bytes arrive.
func (o *offerer) step(now int64, n int) (bytes int) {
	o.t.Helper()
	for i := 0; i == 0 || i == 1 && o.again; i++ {
		if _, err := o.from.Receive(now, nil); err != nil {
			o.t.Fatal(err)
		}
	}
	waiting := make([]TxFrame, n)
	for i := range waiting {
		waiting[i] = frame(o.path, o.psn+uint32(i), o.payload)
	}
	if n > 0 {
		waiting[n-1].More = o.more
	}
	sent, err := o.from.Send(now, waiting)
	if err != nil {
		o.t.Fatal(err)
	}
	o.psn += uint32(sent)
	f := frame(o.path, 0, o.payload)
	var batch [64]RxFrame
	for {
		k, err := o.to.Receive(now, batch[:])
		if err != nil && err != ErrUnread {
			o.t.Fatal(err)
		}
		if k == 0 {
			return bytes
		}
		bytes += k * frameLen(&f)
	}
}

// An engine that is late makes up for it with the packets that waited. A sender that was idle does
// not: it may send a burst.
func TestShapedLinkMakesUpForALateEngine(t *testing.T) {
	const (
		rate   = 10e9
		late   = 2e6 // ns, after each round of steps that leave packets waiting
		rounds = 20
	)
	payload := make([]byte, 4096)
	f := frame(aToB, 0, payload)
	for _, sends := range []bool{true, false} {
		shaped, peer := shapedPair(Shape{Rate: rate})
		from, to, path := Link(shaped), Link(peer), aToB
		if !sends {
			from, to, path = peer, shaped, bToA
		}
		o := offerer{t: t, from: from, to: to, path: path, payload: payload}
		step := o.step
		start := int64(1e9)
		now, end, total := start, start, 0
		for range rounds {
			for stop := now + late/10; now < stop; now += 2000 {
				n := step(now, 64)
				if n > 2*shapeBurst {
					t.Fatalf("sends %t: %d bytes at once", sends, n)
				}
				total += n
			}
			end = now
			now += late
		}
		if ratio := float64(total) * 8e9 / float64(end-start) / rate; ratio < 0.98 || ratio > 1.005 {
			t.Errorf("sends %t: an engine that is late carries %.3f of the rate", sends, ratio)
		}
		for ; step(now, 0) > 0 || now < start+rounds*3*late; now += 1000 { // until nothing waits
		}
		now += 1e9
		total = 0
		for range 10 {
			total += step(now, 64)
			now += 10
		}
		if total < shapeBurst || total > shapeBurst+3*frameLen(&f) {
			t.Errorf("sends %t: a sender that was idle sends %d bytes at once, want a burst of %d", sends, total, shapeBurst)
		}
	}
}

// An engine that has not run for long makes up for shapeLate of that, also if it calls Receive
// twice in a step.
func TestShapedLinkMakesUpForABoundedTime(t *testing.T) {
	const rate = 1e9
	most := int(rate*shapeLate.Seconds()/8) + 2*shapeBurst
	for _, again := range []bool{false, true} {
		shaped, peer := shapedPair(Shape{Rate: rate})
		o := offerer{t: t, from: shaped, to: peer, path: aToB, payload: make([]byte, 4096), again: again}
		total := 0
		for now, n := int64(1e9), o.step(1e9, 64); n > 0; now++ {
			n = o.step(now+200e6, 64)
			total += n
		}
		if total < most/2 || total > most {
			t.Errorf("Receive twice %t: %d bytes at once after 200 ms, want up to %d", again, total, most)
		}
	}
}

// Packets that wait for the rate have not arrived yet. But those that a port would have passed
// before now have, although they do not pass at once.
func TestShapedLinkSaysThatLatePacketsWait(t *testing.T) {
	shaped, peer := shapedPair(Shape{Rate: 10e9})
	for range 64 {
		mustSend(t, peer, 1, frame(bToA, 0, make([]byte, 4096)))
	}
	receive := func(now int64) (n int, err error) {
		var batch [64]RxFrame
		for k := 1; k > 0; n += k {
			k, err = shaped.Receive(now, batch[:])
		}
		return n, err
	}
	const start = 1e9
	for _, c := range []struct {
		now  int64
		want error
	}{{start, nil}, {start + 1e6, ErrUnread}, {start + 1e6 + 1, ErrUnread}, {start + 1e6 + 2, nil}} {
		if n, err := receive(c.now); n == 0 || err != c.want {
			t.Errorf("after %d ns: %d packets, %v; want %v", c.now-start, n, err, c.want)
		}
	}
}

// A sender that has more to send than it offers at once does not lose the time until its next
// offer, unless it had no more after all.
func TestShapedLinkMakesUpForSmallBatches(t *testing.T) {
	const (
		rate = 10e9
		late = 100e3 // ns between two steps
	)
	payload := make([]byte, 4096)
	f := frame(aToB, 0, payload)
	for _, more := range []bool{true, false} {
		shaped, peer := shapedPair(Shape{Rate: rate})
		o := offerer{t: t, from: shaped, to: peer, path: aToB, payload: payload, more: more}
		step := o.step
		start := int64(1e9)
		now, total := start, 0
		for range 200 {
			total += step(now, 8) // all of it is taken
			for now += late; ; now += 1000 {
				n := step(now, 8)
				total += n
				if n == 0 {
					break
				}
			}
			now += late
		}
		ratio := float64(total) * 8e9 / float64(now-start) / rate
		if more && (ratio < 0.98 || ratio > 1.005) {
			t.Errorf("a sender with more to send carries %.3f of the rate", ratio)
		}
		if !more && ratio > 0.8 {
			t.Errorf("a sender that pauses carries %.3f of the rate", ratio)
		}
		step(now, 8)
		for range 2 { // nothing follows
			now += 1000
			if _, err := shaped.Receive(now, nil); err != nil {
				t.Fatal(err)
			}
		}
		now += 1e9
		total = 0
		for range 20 {
			total += step(now, 8)
			now += 10
		}
		if total < shapeBurst || total > shapeBurst+3*frameLen(&f) {
			t.Errorf("more %t: a sender that was idle sends %d bytes at once, want a burst of %d", more, total, shapeBurst)
		}
	}
}

func TestShapedLinkDelaysWithoutARate(t *testing.T) {
	for _, sends := range []bool{true, false} {
		shaped, peer := shapedPair(Shape{Delay: time.Millisecond})
		from, to, path := Link(shaped), Link(peer), aToB
		if !sends {
			from, to, path = peer, shaped, bToA
		}
		for i, at := range stream(t, from, to, path, 100, 1e9) {
			if at != 1e9+1e6 {
				t.Errorf("sends %t: packet %d took %d ns, want 1 ms", sends, i, at-1e9)
			}
		}
	}
}

// What the link below does not take does not count, and is not lost.
func TestShapedLinkInFrontOfACongestedLink(t *testing.T) {
	f := NewFabric()
	owner := new(int)
	inner := &stingyLink{Link: f.NewLink(owner, addrA)}
	peer := f.NewLink(owner, addrB)
	for _, delay := range []time.Duration{0, time.Microsecond} {
		shaped := NewShapedLink(inner, Shape{Rate: 1e9, Delay: delay})
		start := int64(1e9)
		at := stream(t, shaped, peer, aToB, 200, start)
		fr := frame(aToB, 0, make([]byte, 4096))
		want := float64(200*frameLen(&fr)) * 8
		most := want * 1.15
		if delay > 0 { // a packet, at worst, for each time that the link is offered some
			most = 200 * faultRetryInterval
		}
		if took := float64(at[199] - start); took < want*0.85 || took > most {
			t.Errorf("delay %v: %.0f ns, want %.0f to %.0f", delay, took, want, most)
		}
	}
}

// A stingyLink takes a frame each microsecond.
type stingyLink struct {
	Link
	next int64
}

func (l *stingyLink) Send(now int64, batch []TxFrame) (int, error) {
	if now < l.next || len(batch) == 0 {
		return 0, nil
	}
	l.next = now + 1000
	return l.Link.Send(now, batch[:1])
}

func (l *stingyLink) NextDeadline() int64 { return l.next }

func TestShapedLinkDoesNotAllocate(t *testing.T) {
	for _, s := range []Shape{{Rate: 10e9}, {Delay: time.Microsecond}, {Rate: 10e9, Delay: time.Microsecond}} {
		shaped, peer := shapedPair(s)
		payload := make([]byte, 1024)
		batch := []TxFrame{frame(aToB, 1, payload), frame(aToB, 2, payload)}
		var got [8]RxFrame
		now := int64(1e9)
		if n := testing.AllocsPerRun(1000, func() {
			now += 10_000
			shaped.Send(now, batch)
			shaped.Receive(now, got[:])
			peer.Receive(now, got[:])
		}); n != 0 {
			t.Errorf("%+v: %v allocations", s, n)
		}
	}
}

// A sender that does not come back after it was refused leaves nothing due.
func TestShapedLinkForgetsARefusedSender(t *testing.T) {
	shaped, _ := shapedPair(Shape{Rate: 1e9})
	batch := make([]TxFrame, 64)
	for i := range batch {
		batch[i] = frame(aToB, 0, make([]byte, 4096))
	}
	n, err := shaped.Send(1, batch)
	must(t, err)
	due := shaped.NextDeadline()
	if n == len(batch) || due == 0 {
		t.Fatalf("the link took %d frames, next deadline %d", n, due)
	}
	_, err = shaped.Receive(due, make([]RxFrame, 1))
	must(t, err)
	if d := shaped.NextDeadline(); d != 0 {
		t.Errorf("after the deadline the next one is %d", d)
	}
}

// While as many packets as may be on their way are delayed, nothing is to be done.
func TestShapedLinkWaitsWhenManyPacketsAreOnTheirWay(t *testing.T) {
	shaped, peer := shapedPair(Shape{Delay: time.Second})
	batch := []TxFrame{frame(bToA, 0, nil)} // first one, so that the last ones are not all taken
	for range 1 + maxShapeQueued/faultBatch {
		mustSend(t, peer, 1, batch...)
		batch = slices.Repeat(batch[:1], faultBatch)
		if n, err := shaped.Receive(1, make([]RxFrame, 1)); n != 0 || err != nil {
			t.Fatalf("received %d frames, %v", n, err)
		}
	}
	if d := shaped.NextDeadline(); d != 1e9+1 {
		t.Errorf("the next deadline is %d, want that of the first packet", d)
	}
}
