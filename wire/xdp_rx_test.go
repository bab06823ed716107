package wire

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

func TestXDPLinkReceivesOnlyItsRoCEv2(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.xdpLink(), l.a.tap()
	kernel := l.b.tap()
	mac := []byte{2, 0, 0, 0, 7}
	passed := map[byte]bool{} // what the program has passed, by the byte of the source MAC behind mac
	look := func() {
		b := make([]byte, 1<<16)
		for n, _, err := 0, unix.Sockaddr(nil), error(nil); err == nil; {
			n, _, err = unix.Recvfrom(kernel.fd, b, 0)
			if err == nil && n >= packet.EthernetLen && bytes.HasPrefix(b[6:], mac) { // not of the interfaces
				passed[b[11]] = true
			}
		}
	}
	sent := byte(0)
	mine := map[byte]string{}
	other := [6]byte{2, 9, 9, 9, 9, 9}
	for _, v6 := range []bool{false, true} {
		good := l.rawFrame(v6)
		port, dst := packet.EthernetLen+packet.IPv4Len+2, packet.EthernetLen+19
		if v6 {
			port, dst = packet.EthernetLen+packet.IPv6Len+2, packet.EthernetLen+39
		}
		multicast := change(change(good, 0, 0x01, 0x00, 0x5e), dst-3, 239)
		for _, c := range []struct {
			name  string
			frame []byte
			mine  bool
		}{
			{"to the interface", good, true},
			{"with a priority tag", tagged(good, 0x6000), true},
			{"of VLAN 5", tagged(good, 0x6005), false},
			{"with two tags", tagged(tagged(good, 0x6000), 0x6000), false},
			{"to another port", change(good, port, 0x12, 0xb8), false},
			{"to another MAC", change(good, 0, other[:]...), false},
			{"to another address, to be routed", change(good, dst, 99), false},
			{"to broadcast", change(good, 0, 255, 255, 255, 255, 255, 255), false},
			{"to a multicast MAC", multicast, true},
			{"of another protocol", change(good, 12, 0x88, 0xb5), false},
			{"of another IP protocol", change(good, packet.EthernetLen+map[bool]int{false: 9, true: 6}[v6], 6), false},
			{"with nothing behind the Ethernet header", good[:packet.EthernetLen], false},
			{"shorter than its UDP header", good[:port+1], false},
		} {
			sent++
			tap.send(change(c.frame, 6, append(mac, sent)...))
			name := family(v6) + ", a frame " + c.name
			before := rx.Counters().Drops
			taken := func() bool {
				n, err := rx.Receive(0, make([]RxFrame, 1))
				must(t, err)
				return n > 0 || rx.Counters().Drops != before
			}
			if c.mine {
				mine[sent] = name
				eventually(t, name+" to arrive", taken)
				continue
			}
			eventually(t, name+" to be passed to the kernel", func() bool { look(); return passed[sent] })
			if taken() {
				t.Errorf("%s was taken and passed", name)
			}
		}
	}
	expectNone(t, rx)
	look()
	for i, name := range mine {
		if passed[i] {
			t.Errorf("%s was taken and passed", name)
		}
	}
}

func TestXDPLinkCountsFragmentsAndBadHeaders(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.xdpLink(), l.a.tap()
	good, ip := l.rawFrame(false), packet.EthernetLen
	options := append(append(bytes.Clone(good[:ip+20]), 1, 1, 1, 1), good[ip+20:]...)
	tap.send(change(options, ip, 0x46)) // IPv4 options: goes to the kernel
	sendDamaged(t, l, rx, tap)
}

// The fill ring may look full because the kernel reports late what it has consumed.
func TestXDPSocketLosesNoChunk(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	s := rx.socket()
	batch := frames(l.a.path(l.b, false), 50, 100)
	sendAll(t, tx, batch)
	if n := len(collect(t, rx, len(batch))); n != len(batch) {
		t.Fatalf("received %d of %d", n, len(batch))
	}
	held := len(s.held)
	consumed := s.fill.other
	lagging := s.fill.mine - uint32(s.rxChunks)
	s.fill.other = &lagging
	if s.recycle(); held == 0 || len(s.held) != held {
		t.Errorf("%d of %d chunks wait for the fill ring", len(s.held), held)
	}
	s.fill.other = consumed
	before := s.fill.mine
	if s.recycle(); len(s.held) != 0 || s.fill.mine != before+uint32(held) {
		t.Errorf("%d of %d chunks wait for the fill ring, which has room", len(s.held), held)
	}
}

// Frames that were received before KeepReceived keep their bytes.
func TestXDPKeepReceived(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	p := l.a.path(l.b, false)
	kept := append(frames(p, 3, 100), frames(p, 3, 4096)...)
	sendAll(t, tx, kept)
	got := make([]RxFrame, len(kept))
	for n := 0; n < len(kept); {
		if !ready(rx, waitTimeout) {
			t.Fatalf("%d of %d frames", n, len(kept))
		}
		k, _ := rx.Receive(0, got[n:])
		for i := n; i < n+k; i++ { // of several calls, only the last one's bytes are kept
			if n+k < len(kept) {
				got[i] = clone(&got[i])
			}
		}
		n += k
	}
	KeepReceived(rx)
	other := make([]byte, 4096)
	for i := range other {
		other[i] = 0xee
	}
	for range 40 { // through all chunks
		batch := frames(p, 250, 0)
		for i := range batch {
			h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: 0x11}}
			batch[i].Set(&h, other)
		}
		sendAll(t, tx, batch)
		if n := len(collect(t, rx, len(batch))); n != len(batch) {
			t.Fatalf("received %d frames after KeepReceived", n)
		}
	}
	for i := range got {
		if !bytes.Equal(got[i].Head, wireBytes(&kept[i])) {
			t.Errorf("frame %d was overwritten", i)
		}
	}
}

// superFrame returns a super-packet as AF_XDP delivers it: without the length of its packets.
func superFrame(a packet.Addressing, sameID bool, payloads ...int) []byte {
	return delivered(a, 0, sameID, payloads...)[virtioLen:]
}

func TestXDPDecoderFindsPackets(t *testing.T) {
	for _, c := range []struct {
		name     string
		a        packet.Addressing
		payloads []int
	}{
		{"one", splitV4, []int{1000}},
		{"equal", splitV4, []int{1024, 1024, 1024}},
		{"last shorter", splitV6, []int{1024, 1024, 1024, 12}},
		{"longer than any packet", splitV4, []int{4096, 4096, 4096, 4096, 8}},
		{"many small", splitV6, make([]int, maxSegments)},
	} {
		var d xdpDecoder
		for range 2 { // the second one finds the length that the first did
			if reason, ok := d.load(superFrame(c.a, false, c.payloads...)); !ok {
				t.Fatalf("%s: rejected: %v", c.name, reason)
			}
			var f RxFrame
			for i, n := range c.payloads {
				if !d.next(&f) || f.BadICRC || len(f.Head) != packet.BTHLen+n {
					t.Fatalf("%s: packet %d: wrong ICRC %v, %d bytes", c.name, i, f.BadICRC, len(f.Head))
				}
			}
			if d.next(&f) {
				t.Errorf("%s: more packets than segments", c.name)
			}
		}
	}
}

// FuzzXDPReceive decodes arbitrary frames. The decoder must return or count every byte, and access
// no others.
func FuzzXDPReceive(f *testing.F) {
	f.Add(superFrame(splitV4, false, 64))
	f.Add(superFrame(splitV4, false, 256, 256, 256, 1))
	f.Add(superFrame(splitV6, true, 1024, 1024, 3))
	f.Add(roceV1Frame(true))
	f.Add([]byte{})
	var d xdpDecoder
	f.Fuzz(func(t *testing.T, b []byte) {
		given := bytes.Clone(b)
		_, ok := d.load(b)
		total, n := 0, 0
		var f RxFrame
		for d.next(&f) {
			n++
			total += len(f.Head) + packet.ICRCLen
			if len(f.Head) < packet.BTHLen || !bytes.Contains(b, f.Head) {
				t.Fatalf("invalid packet %+v", f)
			}
		}
		if ok != (n > 0) || total > len(b) || !bytes.Equal(b, given) {
			t.Fatalf("accepted %v: %d packets with %d of %d bytes", ok, n, total, len(b))
		}
	})
}
