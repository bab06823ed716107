package wire

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// firstQPN is that of a queue pair of slice 0, of a NIC of two or three slices.
const firstQPN = 30

// xdpSlices opens the links of the slices at both ends of a veth pair.
func xdpSlices(t *testing.T, l *vethPair, kind string, n int) (a, b []Link) {
	t.Helper()
	return l.a.slices(kind, n), l.b.slices(kind, n)
}

// Slices send and receive at a time through one queue. They use all of its packet memory, and one
// that keeps what it has received, because another thread reads it, does not disturb the others.
func TestXDPSlicesShareTheMemoryOfAQueue(t *testing.T) {
	for _, kind := range []string{"xdp", "xdp, generic"} {
		t.Run(kind, func(t *testing.T) {
			const n, rounds, burst = 3, 100, 32
			l := newVethPair(t)
			a, b := xdpSlices(t, l, kind, n)
			var engines sync.WaitGroup
			for k := range n {
				p := l.a.path(l.b, k == 1)
				engines.Go(func() {
					for i := range rounds {
						batch := make([]TxFrame, burst)
						for j := range batch {
							batch[j] = to(p, firstQPN+uint32(k))
						}
						sendAll(t, a[k], batch)
						got := collect(t, b[k], burst)
						for j := range got {
							if h := bth(t, &got[j]); h.DestQP != firstQPN+uint32(k) || got[j].BadICRC {
								t.Errorf("slice %d received a packet to queue pair %d, bad ICRC: %v", k, h.DestQP, got[j].BadICRC)
							}
						}
						if len(got) != burst {
							t.Errorf("slice %d received %d of %d frames", k, len(got), burst)
							return
						}
						if k == 0 && i%30 == 0 {
							KeepReceived(b[k])
						}
					}
				})
			}
			engines.Wait()
			eventually(t, "all slots to be free", func() bool {
				for _, s := range a {
					q := s.(*XDPLink).queues[0]
					if q.reap(q); len(q.free) != q.slots {
						return false
					}
				}
				return true
			})
			used := b[0].(*XDPLink).queues[0]
			if used.fill.mine < uint32(used.rxChunks+rounds*burst) {
				t.Errorf("%d chunks went to the kernel, want %d and those that came back", used.fill.mine, used.rxChunks)
			}
		})
	}
}

// recreateUntilReport creates the interfaces again, and waits until a link reports that.
func (l *vethPair) recreateUntilReport(t *testing.T, rx Link) {
	t.Helper()
	reports := make(chan bool, 10)
	rx.OnReady(func() { reports <- true })
	must(t, l.a.nl.LinkDel(l.a.link()))
	l.connect(t)
	select {
	case <-reports:
	case <-time.After(waitTimeout):
		t.Fatal("the link has not reported that its interface was created again")
	}
}

// After the interface was created again, other descriptors show frames, and the link reports that.
func TestXDPLinkReportsNewDescriptors(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.xdpLink()
	old := rx.AppendFDs(nil)
	l.recreateUntilReport(t, rx)
	rx.Receive(0, nil)
	if now := rx.AppendFDs(nil); slices.Equal(now, old) {
		t.Errorf("descriptors %v, as before", now)
	}
	tx := l.a.packetLink()
	eventually(t, "a descriptor shows a frame", func() bool {
		sendAll(t, tx, frames(l.a.path(l.b, false), 1, 100))
		return ready(rx, 20*time.Millisecond)
	})
}

// The link reports that it could not go over to an interface that was created again.
func TestXDPLinkReportsThatItLostTheInterface(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.xdpLink()
	rx.portMu.Lock()
	rx.modes = []XDPMode{XDPZeroCopy} // which a veth interface does not offer
	rx.portMu.Unlock()
	l.recreateUntilReport(t, rx)
	if _, err := rx.Receive(0, make([]RxFrame, 1)); err == nil || !strings.Contains(err.Error(), "xdp link on "+l.b.name) {
		t.Errorf("Receive returned %v", err)
	}
}

// The kernel takes the program whatever addresses and VLANs the interface has.
func TestKernelTakesXDPProgramOfAnyFilter(t *testing.T) {
	for _, slices := range []int{1, 2} {
		l := newVethPair(t)
		port := l.a.slices("xdp", slices)[0].(*XDPLink).last
		for has := range 8 {
			var f xdpFilter
			if has&1 != 0 {
				f.v4 = [][4]byte{{192, 0, 2, 1}, {192, 0, 2, 2}}
			}
			if has&2 != 0 {
				f.v6 = [][16]byte{{0x20, 1, 0xd, 0xb8, 15: 1}, {0x20, 1, 0xd, 0xb8, 15: 2}}
			}
			if has&4 != 0 {
				f.vlans = []uint16{7, 8}
			}
			program, err := port.load(&f)
			if err != nil {
				t.Errorf("%d slices, IPv4 %v, IPv6 %v, VLANs %v: %v", slices, f.v4, f.v6, f.vlans, err)
				continue
			}
			program.Close()
		}
	}
}
