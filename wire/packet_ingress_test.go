package wire

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"softroce/packet"
)

// counter returns a counter of the host's network layers, such as "Udp: InErrors" or
// "Udp6InErrors".
func (s *netnsHost) counter(name string) (v int) {
	s.t.Helper()
	layer, field, is4 := strings.Cut(name, " ")
	s.do(func() {
		file := "/proc/thread-self/net/snmp6"
		if is4 {
			file = "/proc/thread-self/net/snmp"
		}
		b, err := os.ReadFile(file)
		must(s.t, err)
		var names []string
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			switch {
			case f[0] != layer:
			case !is4:
				v, err = strconv.Atoi(f[1])
				must(s.t, err)
			case names == nil:
				names = f
			default:
				for i := range f {
					if names[i] == field {
						v, err = strconv.Atoi(f[i])
						must(s.t, err)
					}
				}
			}
		}
	})
	return v
}

// needIngress fails the test if a link has no program, and skips it if the kernel has no tcx.
func (s *netnsHost) needIngress(l *PacketLink) {
	s.t.Helper()
	if l.kernel.link == nil {
		s.endIngress()
		s.t.Fatal("the link has no program at the ingress")
	}
}

// endIngress attaches a program to the interface that keeps packets from those attached later. It
// skips the test if the kernel has no tcx.
func (s *netnsHost) endIngress() {
	s.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), // TCX_PASS
		asm.Return(),
	}})
	must(s.t, err)
	defer program.Close()
	var l link.Link
	s.do(func() {
		l, err = link.AttachTCX(link.TCXOptions{Interface: s.link().Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress})
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		s.t.Skip("the kernel has no tcx (Linux 6.6)")
	}
	must(s.t, err)
	s.t.Cleanup(func() { l.Close() })
}

// What is for the NIC does not reach the kernel's UDP layer, whose socket would drop it; what is
// for another address reaches the IP layer, which may forward it.
func TestKernelSeesOnlyWhatItMayForward(t *testing.T) {
	l := newVethPair(t)
	a, b := l.a.packetLink(), l.b.packetLink()
	l.b.needIngress(b)
	// send sends packets, one after the other, because a super-packet counts as one.
	send := func(path *Path) {
		t.Helper()
		for _, f := range frames(path, 8, 64) {
			n, err := a.Send(0, []TxFrame{f})
			must(t, err)
			if n != 1 || len(collect(t, b, 1)) != 1 {
				t.Fatal("a packet was not received")
			}
		}
	}
	errors := func() int { return l.b.counter("Udp: InErrors") + l.b.counter("Udp6InErrors") }

	before := errors()
	send(l.a.path(l.b, false))
	send(l.a.path(l.b, true))
	if n := errors() - before; n != 0 {
		t.Errorf("%d packets reached the UDP layer", n)
	}

	other := *l.a.path(l.b, false)
	other.Dst = netip.MustParseAddr("198.51.100.77")
	before = l.b.counter("Ip: InAddrErrors")
	send(&other)
	if n := l.b.counter("Ip: InAddrErrors") - before; n != 8 {
		t.Errorf("%d of 8 packets for another address reached the IP layer", n)
	}

	l.b.addAddr(netip.PrefixFrom(other.Dst, 24))
	eventually(t, "the new address in the program", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Contains(b.kernel.addrs, other.Dst)
	})
	before = errors()
	send(&other)
	if n := errors() - before; n != 0 {
		t.Errorf("%d packets for a new address reached the UDP layer", n)
	}

	must(t, l.b.nl.LinkDel(l.b.link()))
	l.connect(t)
	eventually(t, "a program on the new interface", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.kernel.link != nil && b.kernel.index == l.b.link().Attrs().Index
	})
	path := l.a.path(l.b, false)
	eventually(t, "packets to pass again", func() bool {
		a.Send(0, frames(path, 1, 64))
		return len(collectFor(t, b, 1, 50*time.Millisecond)) == 1
	})
	before = errors()
	send(path)
	if n := errors() - before; n != 0 {
		t.Errorf("%d packets on the new interface reached the UDP layer", n)
	}
}

// A program that cannot be updated ends: it would drop what is for an address that the interface
// has lost. The next change of the interface is another try.
func TestIngressProgramThatIsOutOfDateEnds(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.packetLink()
	l.b.needIngress(rx)
	rx.mu.Lock()
	namespace := rx.iface.namespace
	rx.iface.namespace = nil // so that it cannot be entered
	rx.mu.Unlock()
	must(t, l.b.nl.AddrDel(l.b.link(), l.b.addr(netip.PrefixFrom(l.b.v4, 24))))
	eventually(t, "no program", func() bool {
		rx.mu.Lock()
		defer rx.mu.Unlock()
		return rx.kernel.link == nil && rx.kernel.counter.Load() == nil
	})
	rx.mu.Lock()
	rx.iface.namespace = namespace
	rx.mu.Unlock()
	added := netip.MustParsePrefix("198.51.100.77/24")
	l.b.addAddr(added)
	eventually(t, "a program with the new address, and without the old one", func() bool {
		rx.mu.Lock()
		defer rx.mu.Unlock()
		addrs := rx.kernel.addrs
		return rx.kernel.link != nil && slices.Contains(addrs, added.Addr()) && !slices.Contains(addrs, l.b.v4)
	})
}

// What the socket gets is counted, so the next poll finds it. Packets of others are not.
func TestArrivalsAreCounted(t *testing.T) {
	l := newVethPair(t)
	links, tap := l.b.slices("packet", 2), l.a.tap()
	rx := links[0].(*PacketLink)
	l.b.needIngress(rx)
	// hint returns the state of a link after another poll would be considered.
	hint := func(l Link) (h arrivalHint, mayPoll bool) {
		h = l.(*PacketLink).rx.hint
		h.skipped = 0
		mayPoll = h.mayPoll(0)
		return h, mayPoll
	}
	received := func() (n uint64) {
		for _, l := range links {
			c := &l.(*PacketLink).counters
			n += c.RxPackets
			for _, d := range c.Drops {
				n += d
			}
		}
		return n
	}
	const ip, udp = packet.EthernetLen, packet.EthernetLen + packet.IPv4Len
	v4, v6 := l.rawFrame(false), l.rawFrame(true)
	options := slices.Concat(change(v4[:udp], ip, 0x46), make([]byte, 4), v4[udp:])
	v1 := l.a.pathV1(l.b, true)
	a := v1.addressing(false)
	for _, c := range []struct {
		name  string
		frame []byte
		want  uint64
	}{
		{"of IPv4", v4, 1},
		{"of IPv6", v6, 1},
		{"of RoCE v1", packet.AppendFrame(nil, &a, &frames(v1, 1, 64)[0].Tx), 1},
		{"with a priority tag", tagged(v4, 0x6000), 1},
		{"with IPv4 options", options, 1},
		{"that is a first fragment", change(v4, ip+6, 0x20), 1},
		{"for another address", change(v6, ip+24, 0x20, 1, 0xd, 0xb9), 1},
		{"to a multicast MAC", change(v6, 0, 0x33, 0x33, 0, 0, 0, 1), 1},
		{"to another port", change(v4, udp+2, 0x12, 0xb8), 0},
		{"of another protocol", change(v4, ip+9, 6), 0},
	} {
		for _, rx := range links {
			collectFor(t, rx, 1000, 10*time.Millisecond)
			if _, mayPoll := hint(rx); mayPoll {
				t.Fatalf("before a frame %s: an empty socket is polled", c.name)
			}
		}
		before, counted := received(), rx.rx.hint.at
		tap.send(c.frame)
		tap.send(v4) // behind it
		var h arrivalHint
		eventually(t, "the frames in the counter", func() (mayPoll bool) {
			h, mayPoll = hint(rx)
			return mayPoll && h.at-counted == c.want+1
		})
		if _, mayPoll := hint(links[1]); !mayPoll {
			t.Errorf("a frame %s: the other slice does not poll", c.name)
		}
		eventually(t, "the frames", func() bool {
			for _, rx := range links {
				collectFor(t, rx, 1000, 10*time.Millisecond)
			}
			return received()-before == c.want+1
		})
	}
}

// While nothing is counted, fifteen of sixteen polls are left out, but none after a wait or after
// Capabilities.Lag. If something arrives uncounted, because another program at the ingress ends the
// chain, none is from then on.
func TestUncountedArrivalsAreFound(t *testing.T) {
	for _, c := range []struct {
		name   string
		waits  bool
		passed int64 // since the last poll
		most   int
	}{
		{"at the time of the last poll", false, 0, maxSkippedPolls + 1},
		{"after a wait", true, 0, 1},
		{"later", false, maxSkipped + 1, 1},
	} {
		l := newVethPair(t)
		tap := l.a.tap()
		l.b.endIngress()
		rx := l.b.packetLink()
		expectNone(t, rx)
		for i, most := range []int{c.most, 1, 1} {
			tap.send(l.rawFrame(false))
			if !ready(rx, waitTimeout) {
				t.Fatal("no frame has arrived")
			}
			if !c.waits {
				rx.rx.hint.skipped = 0
			}
			polls, n := 0, 0
			for n == 0 && polls < 100 {
				n, _ = rx.Receive(c.passed, make([]RxFrame, 1))
				polls++
			}
			if n != 1 || polls > most || i == 0 && polls < most {
				t.Errorf("%s: frame %d was received at poll %d, want %d", c.name, i, polls, most)
			}
			expectNone(t, rx)
		}
		if lag := rx.Capabilities().Lag; lag < maxSkipped {
			t.Errorf("frames may be left out for %d ns, the link's lag is %d", int64(maxSkipped), lag)
		}
	}
}

// A link without the program polls each time, but not right behind a message that was alone.
func TestWithoutProgramPollsAreMade(t *testing.T) {
	rx := newVethPair(t).b.packetLink()
	expectNone(t, rx)
	rx.mu.Lock() // or an event would attach the program again
	defer rx.mu.Unlock()
	rx.kernel.close()
	h, now := &rx.rx.hint, int64(1)
	for _, c := range []struct {
		n       int
		empty   bool
		later   int64 // of the next call
		leftOut bool
	}{{0, true, 0, false}, {0, true, 0, false}, {1, true, 0, true}, {1, true, 1, false}, {2, true, 0, false}, {1, false, 0, false}} {
		if !h.mayPoll(now) {
			t.Fatal("a poll is left out")
		}
		h.polled(c.n, c.empty)
		now += c.later
		if c.leftOut == h.mayPoll(now) {
			t.Fatalf("behind %+v: a poll is left out %t", c, !c.leftOut)
		}
		h.polled(0, true)
	}
}
