package network

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"
)

// star returns a topology of one switch and NICs at 10 Gb/s and 1 µs.
func star(nics int, change func(*SwitchConfig)) *Topology {
	t := &Topology{Switch: SwitchConfig{Buffer: 1 << 20, Queue: 1 << 20}}
	s := t.AddNode("s", true)
	for i := range nics {
		t.Links = append(t.Links, Link{t.AddNode(string(rune('a'+i)), false), s, 10e9, 1000})
	}
	if change != nil {
		change(&t.Switch)
	}
	return t
}

func build(t testing.TB, topology *Topology) *Network {
	t.Helper()
	if err := topology.Check(); err != nil {
		t.Fatal(err)
	}
	n, err := New(topology, 1)
	if err != nil {
		t.Fatal(err)
	}
	n.Advance(1000)
	return n
}

// send sends a frame of 1230 bytes, 1250 with the overhead: a microsecond at 10 Gb/s.
func (n *Network) send(src, dst int, priority uint8) bool {
	if !n.Room(src, priority) {
		return false
	}
	f := n.Frame()
	f.Size, f.Src, f.Dst, f.Priority, f.ECT = 1230, int32(src), int32(dst), priority, true
	n.Send(f)
	return true
}

// drain runs the network until it is at rest and returns the sources of the frames that arrived at
// a NIC, in order, and when the last one did.
func (n *Network) drain(nic int) (sources []int, last int64) {
	for n.Next() != 0 {
		n.Advance(n.Next())
		for f := n.Receive(nic); f != nil; f = n.Receive(nic) {
			sources, last = append(sources, int(f.Src)), n.now
			n.Release(f)
		}
	}
	return sources, last
}

func TestStoreAndForward(t *testing.T) {
	n := build(t, star(2, nil))
	for range 10 {
		n.send(0, 1, 0)
	}
	got, last := n.drain(1)
	// Ten frames, one more for the second hop, and two cables.
	if want := int64(1000 + 10_000 + 1000 + 2000); len(got) != 10 || last != want {
		t.Errorf("%d frames, the last at %d ns, want %d", len(got), last, want)
	}
	if n.Hops() != 20 {
		t.Errorf("%d hops", n.Hops())
	}
}

// Frames take as long a year after time 0 as at its beginning. Those of this rate take 3333.3 ns,
// and fractions add up.
func TestPortKeepsItsRateForYears(t *testing.T) {
	for _, start := range []int64{1000, 365 * 24 * 3600 * 1e9} {
		topology := star(2, nil)
		topology.Links[0].Rate, topology.Links[1].Rate = 3e9, 3e9
		n := build(t, topology)
		n.Advance(start)
		for range 10 {
			n.send(0, 1, 0)
		}
		got, last := n.drain(1)
		if want := start + 33_334 + 3334 + 2000; len(got) != 10 || last != want {
			t.Errorf("from %d ns on: %d frames, the last %d ns later, want %d", start, len(got), last-start, want-start)
		}
	}
}

// The port of a NIC refuses what it has no room for, and says once when it has room for several
// frames.
func TestNICPortRefuses(t *testing.T) {
	n := build(t, star(2, nil))
	taken := 0
	for n.send(0, 1, 0) {
		taken++
	}
	if want := sendQueue/1230 + 2; taken != want { // one more is being sent
		t.Errorf("took %d frames, want %d", taken, want)
	}
	var ready []int
	n.Ready(func(nic int) { ready = append(ready, nic) })
	if ready != nil {
		t.Errorf("ready %v at once", ready)
	}
	for p := n.NICPort(0); !slices.Contains(ready, 0); {
		before := p.Queue()
		n.Advance(n.Next())
		n.Ready(func(nic int) { ready = append(ready, nic) })
		if isReady := slices.Contains(ready, 0); isReady != (before <= sendQueue-refill) {
			t.Fatalf("ready: %v, with a queue of %d bytes", isReady, before)
		}
	}
	if !n.send(0, 1, 0) {
		t.Error("no room")
	}
	for ready = nil; n.Next() != 0; n.Ready(func(nic int) { ready = append(ready, nic) }) {
		n.Advance(n.Next())
	}
	if slices.Contains(ready, 0) {
		t.Error("ready again")
	}
}

// A NIC that was refused frames of two priorities is ready for each of them.
func TestNICPortRefusesEachPriority(t *testing.T) {
	n := build(t, star(2, nil))
	for n.send(0, 1, 0) || n.send(0, 1, 1) {
	}
	var rooms []string
	for n.Next() != 0 {
		n.Advance(n.Next())
		n.Ready(func(nic int) {
			if nic == 0 {
				rooms = append(rooms, fmt.Sprint(n.Room(0, 0), n.Room(0, 1)))
			}
		})
	}
	if want := []string{"false true", "true true"}; !slices.Equal(rooms, want) {
		t.Errorf("ready with room for %q, want %q", rooms, want)
	}
}

func TestDropTail(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*SwitchConfig)
	}{
		{"queue", func(c *SwitchConfig) { c.Queue = 10 * 1230 }},
		{"buffer", func(c *SwitchConfig) { c.Buffer = 11 * 1230 }}, // the frame being sent occupies it too
	} {
		n := build(t, star(4, c.change))
		for range 10 {
			for src := range 3 {
				n.send(src, 3, 0)
			}
		}
		got, _ := n.drain(3)
		s := n.Stats(n.NICPort(3).Peer())
		// 30 frames arrive in 10 µs, in which 9 leave.
		if s.Dropped == 0 || len(got)+int(s.Dropped) != 30 || len(got) < 19 || len(got) > 21 {
			t.Errorf("%s: %d frames arrived, %d dropped", c.name, len(got), s.Dropped)
		}
		if n.nodes[0].used != 0 {
			t.Errorf("%s: %d bytes of the buffer are lost", c.name, n.nodes[0].used)
		}
	}
}

func TestECNMarksByQueueLength(t *testing.T) {
	for _, c := range []struct {
		queue int
		want  float64
	}{{0, 0}, {5000, 0}, {5001, 0}, {102500, 0.05}, {200000, 0.1}, {200001, 1}} {
		e := ECN{Kmin: 5000, Kmax: 200000, Pmax: 0.1}
		if got := e.chance(c.queue, 10e9); got < c.want-1e-6 || got > c.want+1e-6 {
			t.Errorf("chance at %d bytes is %v, want %v", c.queue, got, c.want)
		}
		e.Rate = 10e9
		if got := e.chance(4*c.queue, 40e9); got < c.want-1e-6 || got > c.want+1e-6 {
			t.Errorf("chance at %d bytes of a port that is four times as fast as the thresholds are for is %v, want %v", 4*c.queue, got, c.want)
		}
	}
	// Two senders: the queue grows by a frame with each two that arrive, to 12 frames.
	n := build(t, star(3, func(c *SwitchConfig) { c.ECN = &ECN{Kmin: 5 * 1230, Kmax: 5 * 1230, Pmax: 1} }))
	for range 13 {
		n.send(0, 2, 0)
		n.send(1, 2, 0)
	}
	n.drain(2)
	if s := n.Stats(n.NICPort(2).Peer()); s.Marked < 12 || s.Marked > 16 {
		t.Errorf("%d frames are marked", s.Marked)
	}
	f := n.Frame()
	f.Size, f.Dst = 1230, 2 // not ECN-capable
	n.topology.Switch.ECN.Kmin, n.topology.Switch.ECN.Kmax = -1, -1
	n.Send(f)
	for n.Next() != 0 {
		n.Advance(n.Next())
	}
	if n.Receive(2).CE {
		t.Error("a frame that is not ECN-capable was marked")
	}
}

// With PFC nothing is lost, however small the thresholds, and however large if the buffer is full
// below them, if the headroom is what arrives in a round trip, the frame that finds the buffer
// full, a pause frame, and two frames that were being sent.
func TestPFCLosesNothing(t *testing.T) {
	const headroom = 2*1250 + 2*1250 + 3*1250
	pfc := func(xoff, xon int) func(*SwitchConfig) {
		return func(c *SwitchConfig) {
			c.Buffer = 40_000
			c.PFC = &PFC{XOff: xoff, XOn: xon, Headroom: max(headroom, MaxSize)}
			c.PFC.Priorities[3] = true
		}
	}
	run := func(topology *Topology) (received int, s PortStats, paused PortStats) {
		n := build(t, topology)
		left := [5]int{200, 200, 200, 200, 200}
		for again := true; again; {
			again = false
			for src := range left {
				for left[src] > 0 && n.send(src, 5, 3) {
					left[src]--
				}
				again = again || left[src] > 0
			}
			if n.Next() == 0 {
				break
			}
			n.Advance(n.Next())
			for f := n.Receive(5); f != nil; f = n.Receive(5) {
				received++
			}
		}
		got, _ := n.drain(5)
		for _, p := range n.Ports() {
			if p.paused != 0 || p.bytes != 0 {
				t.Errorf("port %s: paused priorities %08b, %d bytes at the end", p.Name, p.paused, p.bytes)
			}
		}
		return received + len(got), n.Stats(n.NICPort(5).Peer()), n.Stats(n.NICPort(0))
	}
	for _, c := range []struct{ xoff, xon int }{{5000, 2500}, {0, 0}, {30_000, 25_000}} {
		received, s, paused := run(star(6, pfc(c.xoff, c.xon)))
		if s.Dropped != 0 || received != 1000 {
			t.Errorf("%+v: %d frames arrived, %d were dropped", c, received, s.Dropped)
		}
		if paused.PausesReceived == 0 || paused.Paused < 500_000 {
			t.Errorf("%+v: sender: %+v", c, paused)
		}
	}
	if _, s, _ := run(star(6, func(c *SwitchConfig) { c.Buffer, c.Queue = 40_000, 40_000 })); s.Dropped == 0 {
		t.Error("without PFC nothing was dropped")
	}
}

// A paused priority does not pause others.
func TestPauseIsOfOnePriority(t *testing.T) {
	n := build(t, star(2, nil))
	p := n.NICPort(0)
	n.sendPause(p.Peer(), 3, true)
	n.Advance(n.now + 5000)
	n.send(0, 1, 3)
	n.send(0, 1, 4)
	if got, _ := n.drain(1); len(got) != 1 {
		t.Errorf("%d frames passed a pause of one of two priorities", len(got))
	}
	n.sendPause(p.Peer(), 3, false)
	if got, _ := n.drain(1); len(got) != 1 {
		t.Errorf("%d frames after the pause", len(got))
	}
	if s := n.Stats(p); s.Paused < 5000 || s.PausesReceived != 1 {
		t.Errorf("%+v", s)
	}
}

func TestSchedule(t *testing.T) {
	n := build(t, star(4, func(c *SwitchConfig) {
		c.Queue = 100_000 // so that one priority does not fill the buffer
		c.Weights[0], c.Weights[1] = 1, 3
	}))
	count := func(until int64) (l [3]int) {
		for n.Next() != 0 && n.Next() <= until {
			for src, priority := range []uint8{0, 1, 5} {
				for (src < 2 || n.now > 2e6) && n.send(src, 3, priority) {
				}
			}
			n.Advance(n.Next())
			for f := n.Receive(3); f != nil; f = n.Receive(3) {
				l[f.Src]++
				n.Release(f)
			}
		}
		return l
	}
	n.send(0, 3, 0)
	l := count(2e6)
	if r := float64(l[1]) / float64(l[0]); r < 2.8 || r > 3.2 || l[0]+l[1] < 1900 {
		t.Errorf("weights of 1 and 3 have %v frames in 2 ms", l)
	}
	count(2.1e6) // what has been in the network
	if l = count(3e6); l[2] < 890 || l[0]+l[1] > 10 {
		t.Errorf("beside a strict priority: %v frames in 0.9 ms", l)
	}
}

// leafSpine has two NICs on each of two leaves, and four spines.
func leafSpine() *Topology {
	t := &Topology{Switch: SwitchConfig{Buffer: 1 << 20, Queue: 1 << 20}}
	var spines []int
	for i := range 4 {
		spines = append(spines, t.AddNode("spine"+string(rune('0'+i)), true))
	}
	for i := range 2 {
		leaf := t.AddNode("leaf"+string(rune('0'+i)), true)
		for _, s := range spines {
			t.Links = append(t.Links, Link{leaf, s, 10e9, 1000})
		}
		for j := range 2 {
			t.Links = append(t.Links, Link{t.AddNode("n"+string(rune('0'+2*i+j)), false), leaf, 10e9, 1000})
		}
	}
	return t
}

// Flows spread over the shortest paths, and the frames of a flow take one.
func TestECMP(t *testing.T) {
	n := build(t, leafSpine())
	spread := map[string]int{}
	for flow := range uint32(400) {
		before := n.Hops()
		used := ""
		for range 3 {
			f := n.Frame()
			f.Size, f.Dst, f.Hash = 100, 3, flow
			n.Send(f)
			for n.Next() != 0 {
				n.Advance(n.Next())
			}
			for _, p := range n.Ports() {
				if p.node.name == "leaf0" && n.Stats(p).Frames > 0 {
					if used != "" && used != p.Name {
						t.Fatalf("flow %d: %s and %s", flow, used, p.Name)
					}
					used = p.Name
				}
			}
			n.Reset()
		}
		if n.Hops() != before+12 {
			t.Fatalf("flow %d: %d hops of 3 frames, want 12", flow, n.Hops()-before)
		}
		spread[used]++
	}
	for name, flows := range spread {
		if flows < 70 || flows > 130 {
			t.Errorf("%s: %d of 400 flows", name, flows)
		}
	}
	if len(spread) != 4 {
		t.Errorf("flows leave by %v", spread)
	}
}

// ring has five switches with two NICs each: the flows from one to the next but one all go around.
func ring() *Topology {
	t := &Topology{Switch: SwitchConfig{Buffer: 1 << 20, Queue: 1 << 20, PFC: &PFC{XOff: 20_000, XOn: 10_000, Headroom: 40_000}}}
	t.Switch.PFC.Priorities[0] = true
	for i := range 5 {
		t.AddNode("s"+string(rune('0'+i)), true)
	}
	for i := range 5 {
		t.Links = append(t.Links, Link{i, (i + 1) % 5, 10e9, 1000})
		t.Links = append(t.Links, Link{t.AddNode("n"+string(rune('0'+i)), false), i, 10e9, 1000})
	}
	return t
}

func TestDeadlockIsRecognized(t *testing.T) {
	for _, c := range []struct {
		by     int // how far along the ring the frames go
		buffer int // a small one is full before a port reaches XOff
		lock   bool
	}{{2, 1 << 20, true}, {2, 20_000, true}, {1, 1 << 20, false}, {1, 20_000, false}} {
		topology := ring()
		topology.Switch.Buffer = c.buffer
		n := build(t, topology)
		for range 3000 {
			for src := range 5 {
				n.send(src, (src+c.by)%5, 0)
			}
			n.Advance(n.now + 1000)
			for nic := range 5 {
				for f := n.Receive(nic); f != nil; f = n.Receive(nic) {
					n.Release(f)
				}
			}
		}
		for n.Next() != 0 {
			n.Advance(n.Next())
		}
		got := n.Deadlock()
		if !c.lock {
			if got != nil {
				t.Errorf("frames to the next switch: deadlock of %v", got)
			}
			continue
		}
		if got == nil {
			t.Fatal("no deadlock")
		}
		// Every switch waits for the next one, and no NIC can send.
		if want := []string{"s0:s1", "s1:s2", "s2:s3", "s3:s4", "s4:s0"}; !slices.Equal(got.Cycle, want) {
			t.Errorf("cycle %v, want %v", got.Cycle, want)
		}
		if want := []string{"n0", "n1", "n2", "n3", "n4"}; !slices.Equal(got.Waiting, want) {
			t.Errorf("%v wait, want %v", got.Waiting, want)
		}
	}
}

func TestSameSeedSameMarks(t *testing.T) {
	run := func(seed uint64) (marks []bool) {
		top := star(3, func(c *SwitchConfig) { c.ECN = &ECN{Kmin: 0, Kmax: 100_000, Pmax: 1} })
		n, err := New(top, seed)
		if err != nil {
			t.Fatal(err)
		}
		n.Advance(1)
		for range 20 {
			n.send(0, 2, 0)
			n.send(1, 2, 0)
		}
		for n.Next() != 0 {
			n.Advance(n.Next())
			for f := n.Receive(2); f != nil; f = n.Receive(2) {
				marks = append(marks, f.CE)
			}
		}
		return marks
	}
	if a, b := run(1), run(1); !slices.Equal(a, b) || !slices.Contains(a, true) {
		t.Errorf("one seed: %v and %v", a, b)
	}
	if slices.Equal(run(1), run(2)) {
		t.Error("two seeds mark the same frames")
	}
}

// There are many frames and ports. What each frame uses of them is in few cache lines, and those of
// different ports are in different sets of a cache.
func TestLayoutsFitInCacheLines(t *testing.T) {
	var p Port
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"frame", unsafe.Sizeof(Frame{}), 64},
		{"entry", unsafe.Sizeof(entry{}), 32},
		{"class", unsafe.Sizeof(class{}), 64},
		{"what is sent", unsafe.Offsetof(p.sending), 64},
		{"flight", unsafe.Offsetof(p.flight), 128},
		{"classes", unsafe.Offsetof(p.classes) % 64, 0},
		{"port", unsafe.Sizeof(p) % 128, 64},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
}

func TestForwardingDoesNotAllocate(t *testing.T) {
	n := build(t, leafSpine())
	step := func() {
		n.send(0, 3, 0)
		n.send(1, 2, 0)
		n.Advance(n.now + 2000)
		n.Ready(func(nic int) {
			for f := n.Receive(nic); f != nil; f = n.Receive(nic) {
				n.Release(f)
			}
		})
	}
	for range 100 {
		step()
	}
	if allocs := testing.AllocsPerRun(1000, step); allocs != 0 {
		t.Errorf("%v allocations for two frames", allocs)
	}
}

// The samples of a port add up to its statistics, also over a reset.
func TestSamples(t *testing.T) {
	n := build(t, star(3, func(c *SwitchConfig) { c.Queue = 10 * 1230; c.ECN = &ECN{Pmax: 1} }))
	p := n.NICPort(2).Peer()
	var sum PortSample
	for i := range 50 {
		for src := range 2 {
			n.send(src, 2, 0)
		}
		n.Advance(n.now + 1000)
		if i == 10 {
			n.sendPause(p.peer, 0, true)
		}
		if i == 25 {
			n.Reset()
		}
		if i == 30 {
			n.sendPause(p.peer, 0, false)
		}
		if i%7 == 0 || i == 49 {
			s := n.Sample(p)
			if s.Queue > 10*1230 || i > 14 && i < 30 && s.Queue < 9*1230 {
				t.Errorf("after %d µs: queue of %d bytes", i, s.Queue)
			}
			sum.Bytes += s.Bytes
			sum.Marked += s.Marked
			sum.Dropped += s.Dropped
			sum.Paused += s.Paused
		}
	}
	after := n.Stats(p)
	frames := sum.Bytes / 1230
	if frames < 25 || frames > 30 || sum.Marked-frames > 1 || sum.Dropped < after.Dropped+5 || sum.Bytes < after.Bytes+10*1230 || sum.Paused < 19_000 || sum.Paused > 21_000 {
		t.Errorf("%+v; since the reset %+v", sum, after)
	}
}

func TestCheckTopology(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Topology)
	}{
		{"name twice", func(t *Topology) { t.Nodes[1].Name = "s" }},
		{"NIC without link", func(t *Topology) { t.AddNode("x", false) }},
		{"NIC with two links", func(t *Topology) { t.Links = append(t.Links, Link{1, t.AddNode("x", true), 1e9, 0}) }},
		{"NIC to NIC", func(t *Topology) { t.Links[0].B = 2 }},
		{"parallel links", func(t *Topology) { t.Links = append(t.Links, t.Links[0]) }},
		{"no buffer", func(t *Topology) { t.Switch.Buffer = 0 }},
		{"kmin above kmax", func(t *Topology) { t.Switch.ECN = &ECN{Kmin: 2, Kmax: 1} }},
		{"xon above xoff", func(t *Topology) { t.Switch.PFC = &PFC{XOn: 2, XOff: 1, Headroom: MaxSize} }},
	} {
		top := star(3, nil)
		if c.change(top); top.Check() == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
	top := star(2, nil)
	top.AddNode("island", true)
	if _, err := New(top, 1); err == nil {
		t.Error("two parts: no error")
	}
}

func BenchmarkLeafSpine(b *testing.B) {
	n := build(b, leafSpine())
	for b.Loop() {
		n.send(0, 3, 0)
		n.Advance(n.now + 1000)
		for f := n.Receive(3); f != nil; f = n.Receive(3) {
			n.Release(f)
		}
	}
	b.ReportMetric(float64(n.Hops())/b.Elapsed().Seconds(), "hops/s")
}
