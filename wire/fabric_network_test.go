package wire

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softroce/internal/network"
	"softroce/packet"
)

// star returns a topology of NICs n0, n1, … at one switch.
func star(nics int, rate int64, c network.SwitchConfig) *network.Topology {
	t := &network.Topology{Switch: c}
	s := t.AddNode("s", true)
	for i := range nics {
		t.Links = append(t.Links, network.Link{A: s, B: t.AddNode(fmt.Sprint("n", i), false), Rate: rate, Delay: 1000})
	}
	return t
}

// A switchedNIC is a link of a fabric with switches, and how often its owner was woken.
type switchedNIC struct {
	*FabricLink
	woken int
}

func switched(t *testing.T, topology *network.Topology) (*Fabric, []*switchedNIC) {
	t.Helper()
	f, err := NewSwitchedFabric(topology)
	if err != nil {
		t.Fatal(err)
	}
	var nics []*switchedNIC
	for i := range topology.Links {
		n := &switchedNIC{FabricLink: f.NewLink(nil, switchedAddr(i))}
		if rate, err := n.Plug(fmt.Sprint("n", i)); err != nil || rate != topology.Links[0].Rate {
			t.Fatalf("rate %d, %v", rate, err)
		}
		n.OnReady(func() { n.woken++ })
		nics = append(nics, n)
	}
	return f, nics
}

func switchedAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}) }

// switchedFrames returns packets with 4096 bytes from one NIC to another.
func switchedFrames(from, to, n int, tclass uint8) []TxFrame {
	batch := make([]TxFrame, n)
	for i := range batch {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.SendMiddle), PSN: uint32(i), DestQP: 2}}
		batch[i].Set(&h, bytes.Repeat([]byte{byte(i)}, 4096))
		batch[i].Path = &Path{Src: switchedAddr(from), Dst: switchedAddr(to), TClass: tclass, HopLimit: 64}
	}
	return batch
}

// Of a frame of switchedFrames.
const (
	switchedSize = 14 + 20 + 8 + 12 + 4096 + 4 + 4
	switchedTime = (switchedSize + 20) * 8 // at 1 Gb/s, with preamble and gap, in ns
)

func TestSwitchPacesFrames(t *testing.T) {
	_, nics := switched(t, star(2, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6}))
	a, b := nics[0], nics[1]
	sent := switchedFrames(0, 1, 8, 0)
	if n, err := a.Send(1, sent); n != 8 || err != nil {
		t.Fatalf("%d frames sent, %v", n, err)
	}
	for i := range sent {
		clear(sent[i].Payload[0]) // the link has a copy
	}
	got := make([]RxFrame, 16)
	for i := range 8 {
		// The switch stores each frame, which passes two cables.
		due := 1 + int64(i+2)*switchedTime + 2000
		for next := a.NextDeadline(); next != 0 && next < due-1; next = a.NextDeadline() {
			a.Receive(next, got)
		}
		if n, _ := b.Receive(due-2, got); n != 0 {
			t.Fatalf("frame %d arrives too early", i)
		}
		n, err := b.Receive(due+1, got)
		if n != 1 || err != nil || got[0].Head[packet.BTHLen] != byte(i) || got[0].Src != switchedAddr(0) || got[0].CE() {
			t.Fatalf("frame %d: %d received, %v", i, n, err)
		}
	}
	if a.NextDeadline() != 0 || b.NextDeadline() != 0 {
		t.Error("something is due on an idle network")
	}
}

// drain receives at a NIC, at the times of all events, until nothing is left, and returns the
// frames.
func (n *switchedNIC) drain(now int64) (got []RxFrame) {
	batch := make([]RxFrame, 8)
	for {
		k, _ := n.Receive(now, batch)
		for _, f := range batch[:k] {
			f.Head = bytes.Clone(f.Head)
			got = append(got, f)
		}
		next := n.NextDeadline()
		if k == 0 && next == 0 {
			return got
		}
		now = max(now, next)
	}
}

// A switch marks the frames that are ECN-capable while its queue is long, and no others: none of
// RoCE v1, which has no ECN.
func TestSwitchMarks(t *testing.T) {
	topology := star(4, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6, ECN: &network.ECN{Kmin: 5000, Kmax: 6000, Pmax: 1}})
	_, nics := switched(t, topology)
	for from, tclass := range []uint8{2, 0, 2} {
		batch := switchedFrames(from, 3, 8, tclass)
		for i := range batch {
			if from == 2 {
				batch[i].Path.Network = packet.RoCEv1
			}
		}
		if n, err := nics[from].Send(1, batch); n != 8 || err != nil {
			t.Fatalf("%d frames sent, %v", n, err)
		}
	}
	marked := [3]int{}
	got := nics[3].drain(1)
	for _, f := range got {
		if f.TClass&3 == 3 {
			marked[f.Src.As4()[3]-1]++
		}
	}
	if len(got) != 24 || marked[0] < 5 || marked[1] != 0 || marked[2] != 0 {
		t.Errorf("%d frames, %v marked", len(got), marked)
	}
}

// A NIC whose port has no room takes no frames. Its owner is woken when there is some.
func TestSwitchRefusesWithoutRoom(t *testing.T) {
	_, nics := switched(t, star(2, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6}))
	sent := switchedFrames(0, 1, 100, 0)
	n, err := nics[0].Send(1, sent)
	if want := 32<<10/switchedSize + 2; n != want || err != nil { // one is being sent
		t.Fatalf("%d frames sent, want %d, %v", n, want, err)
	}
	got := nics[1].drain(1)
	if len(got) != n || nics[0].woken == 0 {
		t.Fatalf("%d frames received of %d, woken %d times", len(got), n, nics[0].woken)
	}
	if k, err := nics[0].Send(1e9, sent[n:]); k == 0 || err != nil {
		t.Errorf("%d frames sent, %v", k, err)
	}
}

// A queue that is full drops frames, or with PFC pauses those that send.
func TestSwitchDropsOrPauses(t *testing.T) {
	for _, pfc := range []*network.PFC{nil, {Priorities: [8]bool{true}, XOff: 8000, XOn: 4000, Headroom: 40000}} {
		f, nics := switched(t, star(3, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 20000, PFC: pfc}))
		sent := 0
		for from := range 2 {
			n, err := nics[from].Send(1, switchedFrames(from, 2, 50, 0))
			if err != nil {
				t.Fatal(err)
			}
			sent += n
		}
		got := len(nics[2].drain(1))
		var dropped, pauses int
		for _, p := range f.SwitchPorts(1e9) {
			dropped += int(p.Dropped)
			pauses += int(p.PausesSent)
		}
		if got+dropped != sent || (dropped == 0) != (pfc != nil) || (pauses > 0) != (pfc != nil) {
			t.Errorf("PFC %v: %d sent, %d received, %d dropped, %d pauses", pfc != nil, sent, got, dropped, pauses)
		}
	}
}

// A capture has the pause frames that arrive at the NIC, at their times, also if the owner of
// another link has carried them out. While nothing is captured, none are kept.
func TestCaptureHasPauses(t *testing.T) {
	pfc := &network.PFC{Priorities: [8]bool{3: true}, XOff: 8000, XOn: 4000, Headroom: 40000}
	f, nics := switched(t, star(3, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6, PFC: pfc}))
	now, s := int64(1), &frameList{}
	c := NewCaptureLink(nics[0].FabricLink, nil, CaptureOptions{Wall: func(now int64) int64 { return now }})
	// congest lets two NICs send to the third, and returns the times of all events.
	congest := func() map[int64]bool {
		for _, l := range []Link{c, nics[1]} {
			from := 0
			if l == nics[1] {
				from = 1
			}
			if n, err := l.Send(now, switchedFrames(from, 2, 8, 3<<5)); n != 8 || err != nil {
				t.Fatalf("%d frames sent, %v", n, err)
			}
		}
		times := map[int64]bool{}
		for next := nics[2].NextDeadline(); next != 0; next = nics[2].NextDeadline() {
			now = max(now, next)
			times[now] = true
			nics[2].Receive(now, make([]RxFrame, 8))
		}
		return times
	}
	counted := func() (xoffs int) {
		for _, p := range f.SwitchPorts(now) {
			if p.Name == "n0" {
				xoffs = int(p.PausesReceived)
			}
		}
		return xoffs
	}

	congest()
	if before := counted(); before == 0 || nics[0].hasPauses() {
		t.Fatalf("before the capture: %d pauses, kept: %v", before, nics[0].hasPauses())
	}
	tap := c.Attach(s, 5)
	before, woken := counted(), nics[0].woken
	times := congest()
	s.frames, s.wall, s.iface = nil, nil, nil // what was sent
	if n, err := c.Receive(now+1000, make([]RxFrame, 8)); n != 0 || err != nil {
		t.Fatalf("%d frames received, %v", n, err)
	}
	var xoffs, xons int
	for i, b := range s.frames {
		p, ok := packet.ParsePause(b)
		if !ok || p.Classes != 1<<3 || p.SrcMAC == nics[0].sourceMAC(switchedAddr(0)) || !times[s.wall[i]] || s.iface[i] != 5 {
			t.Errorf("frame %d at %d: %x", i, s.wall[i], b)
		}
		if p.Quanta == [8]uint16{3: 0xffff} {
			xoffs++
		} else if p.Quanta == [8]uint16{} {
			xons++
		}
	}
	if xoffs == 0 || xoffs != counted()-before || xons != xoffs || nics[0].woken-woken < len(s.frames) {
		t.Errorf("%d pauses began, %d ended, %d counted, the owner was woken %d times", xoffs, xons, counted()-before, nics[0].woken-woken)
	}
	if n, err := c.Receive(now+1000, make([]RxFrame, 8)); n != 0 || err != nil || len(s.frames) != xoffs+xons {
		t.Errorf("again: %d frames of a capture of %d, %v", len(s.frames), xoffs+xons, err)
	}
	tap.Detach()
	if congest(); nics[0].hasPauses() {
		t.Error("pauses are kept after the capture")
	}
}

func TestSwitchDeliversToGroupAndSelf(t *testing.T) {
	_, nics := switched(t, star(3, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6}))
	group := netip.MustParseAddr("239.1.2.3")
	for _, n := range nics {
		if err := n.Join(group); err != nil {
			t.Fatal(err)
		}
	}
	batch := switchedFrames(0, 1, 1, 0)
	batch[0].Path.Dst = group
	if n, err := nics[0].Send(1, batch); n != 1 || err != nil {
		t.Fatalf("%d frames sent, %v", n, err)
	}
	if n, err := nics[0].Send(1, switchedFrames(0, 0, 1, 0)); n != 1 || err != nil {
		t.Fatalf("%d frames sent, %v", n, err)
	}
	for i, want := range []int{2, 1, 1} {
		if got := nics[i].drain(1); len(got) != want {
			t.Errorf("NIC %d has received %d frames, want %d", i, len(got), want)
		}
	}
}

func TestSwitchForgetsClosedLink(t *testing.T) {
	f, nics := switched(t, star(2, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6}))
	nics[0].Send(1, switchedFrames(0, 1, 3, 0))
	if err := nics[1].Close(); err != nil {
		t.Fatal(err)
	}
	nics[0].drain(1)
	batch := switchedFrames(0, 1, 1, 0)
	if n, _ := nics[0].Send(1e9, batch); n != 1 || !batch[0].Dropped || nics[0].Counters().Drops[DropUnreachable] != 1 {
		t.Errorf("%d frames sent to a closed link, dropped %v", n, batch[0].Dropped)
	}
	again := f.NewLink(nil, switchedAddr(1))
	if _, err := again.Plug("n1"); err != nil {
		t.Errorf("the port of a closed link: %v", err)
	}
	if _, err := f.NewLink(nil).Plug("n1"); err == nil || !strings.Contains(err.Error(), "no free NIC n1") {
		t.Errorf("a port in use: %v", err)
	}
	stray := f.NewLink(nil, switchedAddr(7))
	if _, err := stray.Plug("n7"); err == nil {
		t.Error("a NIC that does not exist has a port")
	}
	for _, from := range []*FabricLink{nics[0].FabricLink, stray} {
		batch := switchedFrames(0, 7, 1, 0)
		if from == stray {
			batch[0].Path.Dst = switchedAddr(0)
		}
		if n, err := from.Send(2e9, batch); n != 1 || err != nil || !batch[0].Dropped {
			t.Errorf("a frame to or from a link without a port: %d sent, %v", n, err)
		}
	}
	if n, err := stray.Receive(2e9, make([]RxFrame, 4)); n != 0 || err != nil {
		t.Errorf("a link without a port has received %d frames, %v", n, err)
	}
	if err := stray.Close(); err != nil {
		t.Error(err)
	}
	if n, err := nics[0].Send(2e9, switchedFrames(0, 1, 1, 0)); n != 1 || err != nil {
		t.Errorf("after a link without a port was closed: %d frames sent, %v", n, err)
	}
	if got := len((&switchedNIC{FabricLink: again}).drain(2e9)); got != 1 {
		t.Errorf("after a link without a port was closed: %d frames received", got)
	}
	if rate, err := NewFabric().NewLink(nil).Plug("n7"); rate != 0 || err != nil {
		t.Errorf("a fabric without switches: %d, %v", rate, err)
	}
}

// Engines on threads of their own use the network together.
func TestSwitchAllowsConcurrentOwners(t *testing.T) {
	const each = 2000
	_, nics := switched(t, star(4, 100e9, network.SwitchConfig{Buffer: 1e8, Queue: 1e8}))
	var wg sync.WaitGroup
	var missing atomic.Int64
	done := make(chan struct{})
	missing.Store(each * int64(len(nics)))
	for i, n := range nics {
		ready := make(chan struct{}, 1)
		n.OnReady(func() {
			select {
			case ready <- struct{}{}:
			default:
			}
		})
		wg.Go(func() {
			batch := make([]RxFrame, 32)
			sent, now := 0, int64(1)
			for missing.Load() > 0 { // a link that has sent carries out what is due
				if sent < each {
					k, err := n.Send(now, switchedFrames(i, (i+1)%4, min(16, each-sent), 0))
					if err != nil {
						t.Error(err)
						return
					}
					sent += k
				}
				k, _ := n.Receive(now, batch)
				missing.Add(int64(-k))
				if next := n.NextDeadline(); next != 0 {
					now = max(now+1, next)
				} else if sent == each {
					select {
					case <-ready:
					case <-done:
					}
				}
			}
		})
	}
	for missing.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	close(done)
	wg.Wait()
}

func TestSwitchDoesNotAllocate(t *testing.T) {
	_, nics := switched(t, star(2, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 20000}))
	sent, batch, now := switchedFrames(0, 1, 16, 0), make([]RxFrame, 32), int64(1)
	exchange := func() {
		nics[0].Send(now, sent)
		for next := nics[1].NextDeadline(); next != 0; next = nics[1].NextDeadline() {
			now = max(now, next)
			nics[1].Receive(now, batch)
		}
	}
	exchange()
	if n := testing.AllocsPerRun(100, exchange); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The links know of failures that were added before and after the fabric was made.
func TestFailuresOfSwitchesAreDeadlines(t *testing.T) {
	net, err := network.New(star(2, 1e9, network.SwitchConfig{Buffer: 1e6, Queue: 1e6}), 1)
	if err != nil {
		t.Fatal(err)
	}
	net.Fail(network.Failure{Kind: network.ECNOff, Node: 0, Start: 5000})
	f := NewFabricOf(net)
	var links []*FabricLink
	for i := range 2 {
		p := f.NewLink(nil, switchedAddr(i))
		if _, err := p.Plug(fmt.Sprint("n", i)); err != nil {
			t.Fatal(err)
		}
		links = append(links, p)
	}
	if at := links[1].NextDeadline(); at != 5000 {
		t.Errorf("deadline %d, want 5000", at)
	}
	f.Fail(network.Failure{Kind: network.LinkDown, Link: 1, Start: 2000, End: 1e6})
	if at := links[0].NextDeadline(); at != 2000 {
		t.Errorf("deadline %d, want 2000", at)
	}
	if n, err := links[0].Send(3000, switchedFrames(0, 1, 1, 0)); n != 1 || err != nil {
		t.Fatalf("%d frames sent, %v", n, err)
	}
	got := make([]RxFrame, 1)
	if n, err := links[1].Receive(2e6, got); n != 0 || err != nil {
		t.Errorf("%d frames arrived at a cable that was down, %v", n, err)
	}
	if s := net.Stats(net.NICPort(1).Peer()); s.Lost != 1 {
		t.Errorf("%d frames were lost", s.Lost)
	}
}
