package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newMultiqueuePair returns a veth pair whose interfaces can have four queues, and use some.
func newMultiqueuePair(t *testing.T, queues uint32) *vethPair {
	t.Helper()
	l := newVethPair(t)
	must(t, l.a.nl.LinkDel(l.a.link()))
	must(t, l.a.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: l.a.name, MTU: vethMTU, NumTxQueues: 4, NumRxQueues: 4},
		PeerName:  l.b.name, PeerMTU: vethMTU, PeerNamespace: netlink.NsFd(l.b.ns), PeerNumTxQueues: 4, PeerNumRxQueues: 4,
	}))
	for _, s := range []*netnsHost{l.a, l.b} {
		must(t, s.nl.LinkSetUp(s.link()))
		s.addAddr(netip.PrefixFrom(s.v4, 24))
	}
	l.setQueues(t, queues)
	return l
}

// setQueues sets how many queues both interfaces use.
func (l *vethPair) setQueues(t *testing.T, n uint32) {
	t.Helper()
	l.b.setQueues(n) // first: XDP needs as many as the peer sends through
	l.a.setQueues(n)
	for _, s := range []*netnsHost{l.a, l.b} {
		eventually(t, "carrier on "+s.name, s.usable)
	}
}

func TestXDPLinkServesAllQueues(t *testing.T) {
	for _, c := range []struct {
		slices int
		queues uint32 // when the link is opened
	}{{1, 4}, {1, 1}, {3, 4}, {3, 1}} {
		t.Run(fmt.Sprintf("%d slices, %d queues at first", c.slices, c.queues), func(t *testing.T) {
			l := newMultiqueuePair(t, c.queues)
			tx, rx := l.a.packetLink(), l.b.slices("xdp", c.slices)
			l.setQueues(t, 4)
			for _, link := range rx {
				x := link.(*XDPLink)
				eventually(t, "sockets for all queues", func() bool {
					rx[0].(*XDPLink).portMu.Lock() // until they are in use
					defer rx[0].(*XDPLink).portMu.Unlock()
					x.Receive(0, nil)
					return len(x.queues) == 4
				})
				x.queues = x.queues[:1] // as if Receive had not been called since
				if fds := x.AppendFDs(nil); len(fds) != 4 {
					t.Errorf("%d descriptors, want 4", len(fds))
				}
				l.sendThroughQueues(t, tx, x)
			}
		})
	}
}

// sendThroughQueues sends packets to an xdp link at the other end, and checks that they arrive
// through several queues, which follow from a packet's flow.
func (l *vethPair) sendThroughQueues(t *testing.T, tx Link, x *XDPLink) {
	t.Helper()
	var batch []TxFrame
	for i := range 64 {
		p := l.a.path(l.b, false)
		p.SrcPort = uint16(0xc000 + i)
		batch = append(batch, to(p, firstQPN+uint32(x.number)))
	}
	sendAll(t, tx, batch)
	got := collect(t, x, len(batch))
	for i := range got {
		if h := bth(t, &got[i]); h.DestQP != firstQPN+uint32(x.number) {
			t.Errorf("slice %d received a packet to queue pair %d", x.number, h.DestQP)
		}
	}
	if len(got) != len(batch) {
		t.Errorf("slice %d received %d of %d packets", x.number, len(got), len(batch))
	}
	used := 0
	for _, s := range x.queues {
		if s.rx.mine > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("slice %d received through %d of 4 queues, want several", x.number, used)
	}
}

// A new queue gets the sockets of all slices or none, and queues before one that fails are used.
// What could not be opened, or a program that could not be replaced, is tried again at the next
// change.
func TestXDPLinkTriesAgainToServeNewQueues(t *testing.T) {
	const n = 3
	for _, c := range []struct {
		descriptors int // that can be opened
		queues      int // that the link has then
		want        string
	}{
		{0, 1, "queue 1: "},
		{1, 1, "queue 1: "},
		{n - 1, 1, "queue 1: "},
		{n + 1, 2, "queue 2: "},
		{3 * n, 4, "load the XDP program: "},
	} {
		t.Run(fmt.Sprintf("%d descriptors", c.descriptors), func(t *testing.T) {
			l := newMultiqueuePair(t, 1)
			tx, rx := l.a.packetLink(), l.b.slices("xdp", n)
			iface, port := netdevOf(rx[0]), rx[0].(*XDPLink).last
			l.b.stopWatching(iface)
			l.setQueues(t, 4)
			follow := func(queues int) error {
				l.b.change(iface, func(s *netdevState) { s.queues = 4 })
				for k := range rx {
					if got := len(port.of(k)); got != queues {
						t.Errorf("slice %d has sockets for %d queues, want %d", k, got, queues)
					}
				}
				_, err := rx[0].Receive(0, nil)
				return err
			}
			more := openOnly(t, c.descriptors)
			err := follow(c.queues)
			more()
			if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "xdp link on "+l.b.name+": "+c.want) {
				t.Errorf("reports %v, want %q", err, c.want)
			}
			must(t, follow(4))
			if port.grown {
				t.Fatal("the program is older than a queue")
			}
			for _, k := range rx {
				l.sendThroughQueues(t, tx, k.(*XDPLink))
			}
		})
	}
}
