package wire

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// What is for the NIC does not reach the kernel's UDP layer, whose socket would drop it; what is
// for another address reaches the IP layer, which may forward it.
func TestKernelSeesOnlyWhatItMayForward(t *testing.T) {
	l := newVethPair(t)
	a, b := l.a.packetLink(), l.b.packetLink()
	if b.kernel.link == nil {
		t.Skip("the kernel has no tcx (Linux 6.6)")
	}
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
}
