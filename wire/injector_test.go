package wire

import (
	"net/netip"
	"slices"
	"testing"
)

func newTestInjector(t *testing.T) *InjectorLink {
	t.Helper()
	station := StaticTrunk("in0", dgMAC, 9000, []VLANAddress{{Prefix: netip.PrefixFrom(dgAddr, 24), VLAN: 7}},
		netip.PrefixFrom(dgAddr, 24), netip.PrefixFrom(dg6, 64))
	l, err := NewInjectorLink(NewFabric().NewLink(nil, dgAddr), station)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A frame that the link would drop is dropped, for the same reason.
func TestInjectedFramesPassTheLinksChecks(t *testing.T) {
	const none = NumDrops
	tag := func(b []byte, vlan byte) []byte { return slices.Insert(slices.Clone(b), 12, 0x81, 0, 0, vlan) }
	for _, c := range []struct {
		name          string
		frame         []byte
		packet, dgram Drop
	}{
		{"IPv4", roceFrame(false), none, none},
		{"IPv6", roceFrame(true), none, none},
		{"tagged", tag(roceFrame(false), 7), none, none},
		{"another VLAN", tag(roceFrame(false), 8), none, DropVLAN},
		{"other MAC", changed(roceFrame(false), 5, 99), none, DropMAC},
		{"other host", fixIP(changed(roceFrame(false), 33, 99)), none, DropIPAddress},
		{"IP checksum", changed(roceFrame(false), 24, 1, 2), DropIPChecksum, DropIPChecksum},
		{"UDP checksum", checksummed(roceFrame(true), 1), DropUDPChecksum, DropUDPChecksum},
		{"half a packet", roceFrame(false)[:60], DropTruncated, DropTruncated},
		{"ARP", arpFrame(3, vmAddr, dgAddr), DropEtherType, DropARP},
		{"nothing", nil, DropTruncated, DropTruncated},
	} {
		for as, want := range map[InjectAs]Drop{InjectAsPacket: c.packet, InjectAsDgram: c.dgram} {
			l := newTestInjector(t)
			l.Inject(as, c.frame)
			if l.NextDeadline() == 0 {
				t.Errorf("%s: NextDeadline is 0 with an injected frame", c.name)
			}
			var batch [2]RxFrame
			n, err := l.Receive(1, batch[:])
			if err != nil || (n == 1) != (want == none) || l.NextDeadline() != 0 {
				t.Errorf("%s, as %d: received %d, %v; want %v", c.name, as, n, err, want)
			}
			counters := l.Counters()
			if counters.RxPackets != uint64(n) {
				t.Errorf("%s, as %d: counted %d as received", c.name, as, counters.RxPackets)
			}
			for d, k := range counters.Drops {
				if (k == 1) != (Drop(d) == want) {
					t.Errorf("%s, as %d: counted %d times as %v, want %v", c.name, as, k, Drop(d), want)
				}
			}
			if n == 1 {
				if h := bth(t, &batch[0]); h.PSN != 9 || batch[0].SrcMAC != vmMAC {
					t.Errorf("%s, as %d: %+v", c.name, as, batch[0])
				}
			}
		}
	}
}

func TestInjectedFramesFollowTheLinksFrames(t *testing.T) {
	f := NewFabric()
	station := StaticInterface("in0", dgMAC, 9000, netip.PrefixFrom(addrB, 24))
	l, err := NewInjectorLink(f.NewLink(nil, addrB), station)
	if err != nil {
		t.Fatal(err)
	}
	peer := f.NewLink(nil, addrA)
	if n, err := peer.Send(1, []TxFrame{frame(aToB, 1, nil)}); n != 1 || err != nil {
		t.Fatalf("Send took %d frames, %v", n, err)
	}
	l.Inject(InjectAsPacket, roceFrame(false))
	l.Inject(InjectAsPacket, roceFrame(true))
	var batch [2]RxFrame
	var psns []uint32
	for range 2 {
		n, err := l.Receive(1, batch[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			psns = append(psns, bth(t, &batch[i]).PSN)
		}
	}
	if !slices.Equal(psns, []uint32{1, 9, 9}) {
		t.Errorf("PSNs %v", psns)
	}
}
