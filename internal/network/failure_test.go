package network

import "testing"

// settle runs the network until it is at rest, and returns how many frames NICs received.
func (n *Network) settle() (received int) {
	for n.Next() != 0 {
		n.Advance(n.Next())
		for nic := range n.NICs() {
			for f := n.Receive(nic); f != nil; f = n.Receive(nic) {
				received++
				n.Release(f)
			}
		}
	}
	return received
}

// lost returns how many frames ports have lost.
func (n *Network) lost() (frames uint64) {
	for _, p := range n.ports {
		frames += n.Stats(p).Lost
	}
	return frames
}

// A frame takes a microsecond to be sent and another to arrive. Those that are in the cable of NIC
// 0, or are sent into it, while it is down are lost.
func TestCableThatIsDownLosesFrames(t *testing.T) {
	n := build(t, star(2, nil))
	n.Fail(Failure{Kind: LinkDown, Link: 0, Start: 5500, End: 8500})
	for range 12 {
		n.send(0, 1, 0)
	}
	// The one that is sent from 3000 to 4000 arrives in time. The last one that is lost is sent
	// from 8000 to 9000.
	if got := n.settle(); got != 12-5 {
		t.Errorf("%d of 12 frames arrived", got)
	}
	if s := n.FailureStats()[0]; s != (FailureStats{Frames: 5, Bytes: 5 * 1230}) || n.lost() != 5 {
		t.Errorf("lost %+v", s)
	}
	if n.nodes[0].used != 0 {
		t.Errorf("%d bytes of the buffer are lost", n.nodes[0].used)
	}
}

// What is in a cable when it goes down is lost at once, and a frame that is sent when it is back
// takes the whole time of the cable.
func TestCableThatIsBackHasItsDelay(t *testing.T) {
	topology := star(2, nil)
	topology.Links[0].Delay = 10_000
	n := build(t, topology)
	n.Fail(Failure{Kind: LinkDown, Link: 0, Start: 5500, End: 5600})
	for range 6 {
		n.send(0, 1, 0)
	}
	n.Advance(5500)
	if n.lost() != 4 {
		t.Errorf("%d frames lost, want 4", n.lost())
	}
	// The fifth is being sent meanwhile. The sixth leaves at 7000, and the switch at 18000.
	got, last := n.drain(1)
	if want := int64(7000 + 10_000 + 1000 + 1000); len(got) != 1 || last != want || n.lost() != 5 {
		t.Errorf("%d frames arrived, the last at %d ns, want 1 at %d; %d lost", len(got), last, want, n.lost())
	}
}

// A cable that loses all frames for some time loses those that leave a port in that time.
func TestLossHasBeginningAndEnd(t *testing.T) {
	n := build(t, star(2, nil))
	n.Fail(Failure{Kind: Loss, Link: 0, Probability: 1, Start: 5500, End: 8500})
	for range 12 {
		n.send(0, 1, 0)
	}
	if got := n.settle(); got != 12-3 || n.lost() != 3 {
		t.Errorf("%d of 12 frames arrived, %d lost", got, n.lost())
	}
}

// While a cable to a spine is down, flows take the other spines. What is on the way to it is lost.
func TestPathsAvoidCableThatIsDown(t *testing.T) {
	n := build(t, leafSpine())
	n.Fail(Failure{Kind: LinkDown, Link: 1, Start: 50_000, End: 100_000}) // from leaf0 to spine1
	send := func(until int64) (sent, received int) {
		for hash := uint32(0); n.now < until; hash++ {
			f := n.Frame()
			f.Size, f.Src, f.Dst, f.Hash = 1230, int32(hash%4), int32(3-hash%4), hash
			n.Send(f)
			sent++
			n.Advance(n.now + 1000)
		}
		return sent, n.settleUntil(until + 20_000)
	}
	uplink := n.ends(1)
	if sent, received := send(30_000); received != sent || n.Stats(uplink[0]).Frames == 0 || n.Stats(uplink[1]).Frames == 0 {
		t.Errorf("before: %d of %d frames arrived", received, sent)
	}
	n.Advance(60_000)
	n.Reset()
	if sent, received := send(80_000); received != sent || n.Stats(uplink[0]).Frames+n.Stats(uplink[1]).Frames > 0 || n.lost() > 0 {
		t.Errorf("meanwhile: %d of %d frames arrived, %d lost", received, sent, n.lost())
	}
	n.Advance(110_000)
	if sent, received := send(150_000); received != sent || n.Stats(uplink[0]).Frames == 0 {
		t.Errorf("afterwards: %d of %d frames arrived", received, sent)
	}
	if s := n.FailureStats()[0]; s.Frames != 0 {
		t.Errorf("%+v", s)
	}
}

func (n *Network) settleUntil(until int64) (received int) {
	n.Advance(until)
	for nic := range n.NICs() {
		for f := n.Receive(nic); f != nil; f = n.Receive(nic) {
			received++
			n.Release(f)
		}
	}
	return received
}

// Frames that have no path are lost to the failure that has cut it, and to the one that is left
// when that has ended.
func TestFramesWithoutPathAreLostToFailure(t *testing.T) {
	top := &Topology{Switch: SwitchConfig{Buffer: 1 << 20, Queue: 1 << 20}}
	for i := range 4 {
		s := top.AddNode("s"+string(rune('0'+i)), true)
		if i > 0 {
			top.Links = append(top.Links, Link{s - 1, s, 10e9, 1000})
		}
	}
	for _, s := range []int{0, 3} {
		top.Links = append(top.Links, Link{top.AddNode("n"+string(rune('0'+s)), false), s, 10e9, 1000})
	}
	n := build(t, top)
	n.Fail(Failure{Kind: LinkDown, Link: 0, Start: 10_000, End: 50_000}) // s0:s1
	n.Fail(Failure{Kind: LinkDown, Link: 2, Start: 20_000})              // s2:s3
	for _, c := range []struct {
		at            int64
		first, second uint64
	}{{12_000, 1, 0}, {30_000, 2, 0}, {60_000, 2, 1}} {
		n.Advance(c.at)
		n.send(0, 1, 0)
		n.Advance(c.at + 8000)
		if s := n.FailureStats(); s[0].Frames != c.first || s[1].Frames != c.second {
			t.Errorf("after %d ns: %+v, want %d and %d frames", c.at, s, c.first, c.second)
		}
	}
	if path := n.Path(0, 1, 0); len(path) != 5 {
		t.Errorf("a path of %d ports", len(path))
	}
}

// Losses are as frequent as they are to be, the same with each run of one seed, and not of pause
// frames.
func TestLossIsRandom(t *testing.T) {
	run := func(seed uint64) (FailureStats, int) {
		n, err := New(star(2, nil), seed)
		if err != nil {
			t.Fatal(err)
		}
		n.Fail(Failure{Kind: Loss, Link: 1, Probability: 0.1, Start: 1})
		received := 0
		for range 10_000 {
			n.send(0, 1, 0)
			n.Advance(n.now + 1000)
			for f := n.Receive(1); f != nil; f = n.Receive(1) {
				received++
				n.Release(f)
			}
		}
		return n.FailureStats()[0], received + n.settle()
	}
	s, received := run(1)
	if s.Frames < 900 || s.Frames > 1100 || received+int(s.Frames) != 10_000 || s.Bytes != s.Frames*1230 {
		t.Errorf("%d frames arrived, %+v", received, s)
	}
	if again, _ := run(1); again != s {
		t.Errorf("one seed: %+v and %+v", s, again)
	}
	if other, _ := run(2); other == s {
		t.Errorf("two seeds: %+v", s)
	}
	n := build(t, star(2, nil))
	n.Fail(Failure{Kind: Loss, Link: 0, Probability: 1})
	n.sendPause(n.NICPort(0).peer, 0, true)
	n.settle()
	if n.NICPort(0).paused != 1 || n.lost() != 0 {
		t.Error("a pause frame was lost")
	}
}

// A cable that is down ends the pauses of both ends, and a pause frame on it is lost.
func TestCableThatIsDownEndsPauses(t *testing.T) {
	n := build(t, ring())
	p := n.NICPort(0)
	n.sendPause(p.peer, 0, true)
	n.Advance(10_000)
	if p.paused != 1 {
		t.Fatal("not paused")
	}
	n.Fail(Failure{Kind: LinkDown, Link: 1, Start: 20_000, End: 30_000})
	n.Advance(25_000)
	if p.paused != 0 || p.peer.classes[0].xoff {
		t.Error("still paused")
	}
	if s := n.Stats(p); s.Paused < 17_900 || s.Paused > 18_000 {
		t.Errorf("paused for %d ns", s.Paused)
	}
	n.Advance(40_000)
	n.sendPause(p.peer, 0, true)
	n.Fail(Failure{Kind: LinkDown, Link: 1, Start: n.now + 500, End: n.now + 600})
	n.settle()
	if p.paused != 0 || n.FailureStats()[1].Frames != 1 {
		t.Errorf("paused priorities %08b, %+v", p.paused, n.FailureStats())
	}
}

func TestSwitchStopsMarking(t *testing.T) {
	n := build(t, star(2, func(c *SwitchConfig) { c.ECN = &ECN{Kmin: 0, Kmax: 0, Pmax: 1} }))
	n.Fail(Failure{Kind: ECNOff, Node: 0, Start: 20_000, End: 40_000})
	marked, unmarked := 0, 0
	for range 60 {
		n.send(0, 1, 0)
		n.Advance(n.now + 1000)
		for f := n.Receive(1); f != nil; f = n.Receive(1) {
			if f.CE {
				marked++
			} else {
				unmarked++
			}
			n.Release(f)
		}
	}
	s := n.FailureStats()[0]
	if unmarked < 19 || unmarked > 21 || marked < 35 || s.Unmarked != uint64(unmarked) || s.Frames != 0 {
		t.Errorf("%d frames marked, %d not; %+v", marked, unmarked, s)
	}
}
