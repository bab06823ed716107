package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

var group4, group6 = netip.MustParseAddr("239.129.2.3"), netip.MustParseAddr("ff15::129:203")

func group(v6 bool) netip.Addr {
	if v6 {
		return group6
	}
	return group4
}

// to returns a path from s to a group.
func (s *netnsHost) to(v6 bool) *Path {
	p := s.path(s, v6)
	p.Dst = group(v6)
	must(s.t, s.iface().Resolve(context.Background(), p))
	return p
}

func TestMulticastReachesMembers(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		must(t, Join(rx, group(v6)))
		must(t, Join(rx, group(v6))) // joining again is not an error
		batch := frames(l.a.to(v6), 3, 100)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
		expectNone(t, rx)
		expectNone(t, tx) // the link does not loop back
	})
}

// member reports whether the host's interface receives the frames of a group.
func (s *netnsHost) member(group netip.Addr) (is bool) {
	s.t.Helper()
	s.do(func() {
		text, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
		must(s.t, err)
		for line := range strings.Lines(string(text)) { // index, name, users, of them global, MAC
			f := strings.Fields(line)
			is = is || f[1] == s.name && f[4] == fmt.Sprintf("%x", multicastMAC(group))
		}
	})
	return is
}

func TestLeaveStopsMulticast(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp"} {
		for _, v6 := range []bool{false, true} {
			t.Run(kind+"/"+family(v6), func(t *testing.T) {
				l := newVethPair(t)
				tx, rx := l.a.packetLink(), l.b.slices(kind, 2)
				g := group(v6)
				for _, k := range rx {
					must(t, Join(k, g))
				}
				batch := []TxFrame{to(l.a.to(v6), destQPMask)}
				sendAll(t, tx, batch)
				if got := collect(t, rx[0], 1); len(got) != 1 {
					t.Fatal("nothing arrived")
				}
				Leave(rx[0], g)
				if !l.b.member(g) {
					t.Error("left the group, which another slice has joined")
				}
				Leave(rx[1], g)
				if l.b.member(g) {
					t.Error("the interface is still a member")
				}
				if kind == "udp" { // for other links the interface filters, but veth does not
					sendAll(t, tx, batch)
					expectNone(t, rx[0])
				}
			})
		}
	}
}

// The kernel sends a report for switches that snoop.
func TestJoinSendsMembershipReport(t *testing.T) {
	const igmp, hopByHop = 2, 0
	for _, kind := range []string{"packet", "udp", "xdp"} {
		for _, v6 := range []bool{false, true} {
			t.Run(kind+"/"+family(v6), func(t *testing.T) {
				l := newVethPair(t)
				rx, tap := l.b.linkOf(kind), l.a.tap()
				must(t, Join(rx, group(v6)))
				g := group(v6).AsSlice()
				eventually(t, "report", func() bool {
					for _, f := range tap.frames(false) {
						proto := f[14+9]
						if v6 {
							proto = f[14+6]
						}
						if (proto == igmp && !v6 || proto == hopByHop && v6) && bytes.Contains(f[34:], g) {
							return true
						}
					}
					return false
				})
			})
		}
	}
}

func TestMulticastNeedsNoResolution(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, kind := range []string{"packet", "udp", "xdp"} {
			l := newVethPair(t)
			tx, tap := l.a.linkOf(kind), l.b.tap()
			p := l.a.to(v6)
			p.HopLimit, p.TClass = 9, 0x68
			sendAll(t, tx, frames(p, 1, 50))
			var found []packet.Frame
			for _, b := range tap.frames(false) {
				var f packet.Frame
				if packet.ParseFrame(b, &f) == nil {
					found = append(found, f)
				}
			}
			want := [6]byte{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}
			if v6 {
				want = [6]byte{0x33, 0x33, 0x01, 0x29, 0x02, 0x03}
			}
			if len(found) != 1 || found[0].DstMAC != want || found[0].HopLimit != 9 || found[0].TClass != 0x68 || !found[0].ICRCOK() {
				t.Errorf("%s: frames on the wire %+v", kind, found)
			}
		}
	}
}

func TestJoinBeyondSocketLimitFails(t *testing.T) {
	l := newVethPair(t)
	for _, rx := range []Link{l.b.packetLink(), l.a.udpLink()} {
		var err error
		for i := byte(0); i < 255 && err == nil; i++ {
			err = Join(rx, netip.AddrFrom4([4]byte{239, 1, 1, i}))
		}
		if !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("joined too many groups: %v, want ENOBUFS", err)
		}
	}
}

func TestUnicastPacketInMulticastFrameIsDropped(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.packetLink()
	tap := l.a.tap()
	f := l.rawFrame(false)
	copy(f, []byte{0x01, 0x00, 0x5e, 1, 2, 3})
	must(t, Join(rx, netip.AddrFrom4([4]byte{239, 1, 2, 3})))
	tap.send(f)
	ready(rx, waitTimeout)
	expectNone(t, rx)
	if c := rx.Counters(); c.Drops[DropIPAddress] != 1 {
		t.Errorf("drops %v, want one by destination address", c.Drops)
	}
}

// sinkLink is a link that takes all frames.
type sinkLink struct {
	Link
	sent int
}

func (l *sinkLink) Send(_ int64, batch []TxFrame) (int, error) {
	l.sent += len(batch)
	return len(batch), nil
}
func (l *sinkLink) Receive(int64, []RxFrame) (int, error) { return 0, nil }
func (l *sinkLink) Capabilities() Capabilities            { return Capabilities{MTU: 1500} }
func (l *sinkLink) CopyPayload()                          {}
func (l *sinkLink) NextDeadline() int64                   { return 0 }
func (l *sinkLink) Join(netip.Addr) error                 { return nil }
func (l *sinkLink) Leave(netip.Addr)                      {}

func TestLoopbackDeliversOwnMulticast(t *testing.T) {
	inner := &sinkLink{}
	l := NewLoopbackLink(inner, func(s Station) bool { return s == Station{Addr: addrA} })
	toGroup := &Path{Src: addrA, Dst: group4}
	ud := packet.Opcode(packet.UD) | packet.SendOnly
	payload := []byte("mine")
	mustSend(t, l, 1, frame(toGroup, 0, payload, ud))
	if got := receive(t, l, 2); len(got) != 0 || inner.sent != 1 {
		t.Errorf("before the join: received %d, sent %d", len(got), inner.sent)
	}
	must(t, Join(l, group4))
	mustSend(t, l, 3, frame(toGroup, 1, payload, ud), frame(aToA, 2, nil), frame(toGroup, 3, payload, ud))
	payload[0] = 'M' // the program reuses its buffer
	got := receive(t, l, 4)
	if p := psns(t, got); len(p) != 3 || p[0] != 1 || p[1] != 2 || p[2] != 3 || inner.sent != 3 {
		t.Fatalf("received %v, %d sent through the link", p, inner.sent)
	}
	if !bytes.HasSuffix(bytesOf(&got[0]), []byte("mine")) || got[0].Dst != group4 {
		t.Errorf("looped back %+v", got[0])
	}
	Leave(l, group4)
	mustSend(t, l, 7, frame(toGroup, 7, payload, ud))
	if got := receive(t, l, 8); len(got) != 0 {
		t.Errorf("received %d after Leave", len(got))
	}
}

func TestLoopbackFullRingLosesOnlyTheCopy(t *testing.T) {
	inner := &sinkLink{}
	l := NewLoopbackLink(inner, func(Station) bool { return false })
	l.ring.limit = 1
	must(t, Join(l, group4))
	f := frame(&Path{Src: addrA, Dst: group4}, 1, nil)
	mustSend(t, l, 1, f, f, f)
	if c := l.Counters(); inner.sent != 3 || c.Drops[DropOverrun] != 2 {
		t.Errorf("%d sent through the link, %d copies counted as lost", inner.sent, c.Drops[DropOverrun])
	}
}

func TestFabricDeliversMulticastToMembers(t *testing.T) {
	f := NewFabric()
	f.queue = 3
	a, b, c := f.NewLink("engine", addrA), f.NewLink("engine", addrB), f.NewLink("other")
	var through Link = NewFaultLink(NewCaptureLink(c, nil, CaptureOptions{}), nil) // middleware passes joins on
	toGroup := &Path{Src: addrA, Dst: group4}
	ud := packet.Opcode(packet.UD) | packet.SendOnly
	mustSend(t, a, 1, frame(toGroup, 0, nil, ud)) // the group has no members
	for _, l := range []Link{a, b, through} {
		must(t, Join(l, group4))
	}
	batch := []TxFrame{frame(toGroup, 1, []byte("x"), ud), frame(aToB, 2, nil), frame(toGroup, 3, nil, ud)}
	mustSend(t, a, 2, batch...)
	for _, l := range []struct {
		link Link
		want string
	}{{a, "[1 3]"}, {b, "[1 2 3]"}, {through, "[1 3]"}} {
		got := receive(t, l.link, 3)
		if p := psns(t, got); binary.Size(p) == 0 || len(p) != len(l.want)/2 {
			t.Errorf("received %v, want %s", p, l.want)
			continue
		}
		if got[len(got)-1].ID-got[0].ID != 2 { // one Identification per frame, however many copies
			t.Errorf("Identifications %d and %d", got[0].ID, got[len(got)-1].ID)
		}
	}
	if n := a.Counters(); n.TxPackets != 4 || n.Drops != [NumDrops]uint64{} {
		t.Errorf("counters %+v", n)
	}
	// A slow member does not block the others.
	Leave(a, group4)
	for i := range uint32(5) {
		mustSend(t, a, 4, frame(toGroup, 10+i, nil, ud))
		receive(t, b, 5)
	}
	if got := receive(t, through, 6); len(got) != 3 || a.Counters().Drops[DropOverrun] != 2 {
		t.Errorf("%d arrived, %d counted", len(got), a.Counters().Drops[DropOverrun])
	}
	must(t, b.Close())
	if Join(b, group4) == nil {
		t.Error("Join on a closed link succeeded")
	}
}

func TestDgramAcceptsJoinedGroups(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newUnconnectedDgram(t)
		var f packet.Frame
		must(t, packet.ParseFrame(roceFrame(v6), &f))
		a := f.Addressing
		a.Dst, a.DstMAC = group(v6), multicastMAC(group(v6))
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.UD) | packet.SendOnly, PKey: packet.DefaultPKey, DestQP: 0xffffff}}
		var tx packet.Tx
		tx.Set(&h, []byte("all"))
		raw := packet.AppendFrame(nil, &a, &tx)
		var rx RxFrame
		if l.input(raw, &rx) || l.counters.Drops[DropMAC] != 1 {
			t.Error("accepted a group that it has not joined")
		}
		must(t, Join(l, group(v6)))
		if !l.input(raw, &rx) || rx.Dst != group(v6) || rx.BadICRC {
			t.Errorf("%+v, dropped %v", rx, l.counters.Drops)
		}
		Leave(l, group(v6))
		if l.input(raw, &rx) {
			t.Error("accepted a group that it left")
		}
	}
}

func TestJoinWithoutMulticastFails(t *testing.T) {
	if err := Join(struct{ Link }{}, group4); !errors.Is(err, ErrNoMulticast) || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
	Leave(struct{ Link }{}, group4)
}
