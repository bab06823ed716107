package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"softroce/packet"
)

var (
	splitV4 = packet.Addressing{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("198.51.100.2"),
		HopLimit: 64, SrcPort: 0xc123, ID: 0xfffe, // so that a super-packet wraps
	}
	splitV6 = packet.Addressing{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"),
		HopLimit: 64, SrcPort: 0xc123, FlowLabel: 0x12345,
	}
)

// delivered returns the message of a packet socket for packets with these payloads: virtio-net
// header, headers, and the packets with their ICRCs. The Identifications count up from a.ID, or are
// all a.ID.
func delivered(a packet.Addressing, flags uint8, sameID bool, payloads ...int) []byte {
	var body []byte
	v := virtioHeader{flags: flags}
	each := a
	for i, n := range payloads {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, PSN: uint32(i)}}
		var t packet.Tx
		t.Set(&h, bytes.Repeat([]byte{byte(i + 1)}, n))
		f := packet.AppendFrame(nil, &each, &t)
		body = append(body, f[each.HeaderLen():]...)
		if i == 0 && len(payloads) > 1 {
			v.segment(&a, t.Len+packet.ICRCLen)
			v.flags = flags
		}
		if !sameID {
			each.ID++
		}
	}
	b := make([]byte, virtioLen+a.HeaderLen())
	v.put(b)
	a.PutHeaders(b[virtioLen:], len(body))
	return append(b, body...)
}

func TestSuperPacketIsCutIntoItsPackets(t *testing.T) {
	for _, c := range []struct {
		name     string
		a        packet.Addressing
		sameID   bool
		payloads []int
	}{
		{"one", splitV4, false, []int{1000}},
		{"one IPv6", splitV6, false, []int{1000}},
		{"equal", splitV4, false, []int{1024, 1024, 1024}},
		{"last shorter", splitV4, false, []int{1024, 1024, 1024, 12}},
		{"last empty", splitV4, false, []int{1024, 1024, 0}},
		{"joined by receive offload from packets of one Identification", splitV4, true, []int{256, 256, 256, 8}},
		{"IPv6", splitV6, false, []int{4096, 4096, 4092}},
		{"many small", splitV4, false, make([]int, 64)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s packetDecoder
			if d, ok := s.load(rxMessage{data: delivered(c.a, virtioNeedsChecksum, c.sameID, c.payloads...)}); !ok {
				t.Fatalf("rejected: %v", d)
			}
			var f RxFrame
			for i, n := range c.payloads {
				if !s.next(&f) {
					t.Fatalf("packet %d is missing", i)
				}
				id := c.a.ID
				if c.a.Src.Is4() && !c.sameID {
					id += uint16(i)
				}
				if f.BadICRC || f.ID != id || len(f.Head) != packet.BTHLen+n+-n&3 || f.Src != c.a.Src || f.Dst != c.a.Dst || f.FlowLabel != c.a.FlowLabel {
					t.Errorf("packet %d: BadICRC %v, ID %d, %d bytes, %v to %v", i, f.BadICRC, f.ID, len(f.Head), f.Src, f.Dst)
				}
			}
			if s.next(&f) || s.runts() != 0 {
				t.Error("more packets than segments")
			}
		})
	}
}

// change returns a copy of b with the bytes from at on replaced.
func change(b []byte, at int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], with)
	return b
}

func TestDecoderDropReasons(t *testing.T) {
	const ip = virtioLen + packet.EthernetLen
	v4, v6 := delivered(splitV4, 0, false, 64), delivered(splitV6, 0, false, 64)
	checksummed := splitV4
	checksummed.UDPChecksum = 0x1234
	tos := change(v4, ip+1, 0xff)
	for _, c := range []struct {
		name string
		b    []byte
		want Drop
	}{
		{"nothing", nil, DropTruncated},
		{"less than a virtio header", v4[:9], DropTruncated},
		{"less than Ethernet", v4[:virtioLen+13], DropTruncated},
		{"less than its IP length", v4[:len(v4)-1], DropTruncated},
		{"ARP", change(v4, ip-2, 0x08, 0x06), DropEtherType},
		{"IP version 5", change(v4, ip, 0x55), DropIPHeader},
		{"IP options", change(v4, ip, 0x46), DropIPHeader},
		{"header checksum", tos, DropIPChecksum},
		{"first fragment", change(v4, ip+6, 0x20), DropFragment},
		{"datagram to be cut into IP fragments", change(v4, 1, virtioFragments, 80, 0, 40, 0), DropFragment},
		{"TCP", change(v4, ip+9, 6), DropIPProtocol},
		{"IPv6 with TCP", change(v6, ip+6, 6), DropIPProtocol},
		{"another port", change(v4, ip+22, 0x12, 0xb8), DropUDPPort},
		{"IPv6, another port", change(v6, ip+42, 0x12, 0xb8), DropUDPPort},
		{"UDP length", change(v4, ip+25, 9), DropUDPLength},
		{"no room for BTH and ICRC", delivered(splitV4, 0, false, 64)[:0], DropTruncated},
		{"UDP checksum", delivered(checksummed, 0, false, 64), DropUDPChecksum},
	} {
		var s packetDecoder
		if d, ok := s.load(rxMessage{data: c.b}); ok || d != c.want {
			t.Errorf("%s: %v %v, want %v", c.name, d, ok, c.want)
		}
		if s.next(new(RxFrame)) {
			t.Errorf("%s: next returned a packet", c.name)
		}
	}
}

func TestUDPChecksums(t *testing.T) {
	for _, a := range []packet.Addressing{splitV4, splitV6} {
		b := delivered(a, 0, false, 65)
		var f packet.Frame
		if err := packet.ParseFrame(b[virtioLen:], &f); err != nil {
			t.Fatal(err)
		}
		udp := f.IP[len(f.IP)-len(f.Transport)-packet.UDPLen:]
		right := ^onesComplementSum(udp, pseudoChecksum(&a, len(f.Transport)))
		for _, c := range []struct {
			name     string
			checksum uint16
			flags    uint8
			ok       bool
		}{
			{"none", 0, 0, true},
			{"right", right, 0, true},
			{"wrong", right ^ 0x0100, 0, false},
			{"wrong, but verified by the interface", right ^ 0x0100, virtioDataValid, true},
			{"not yet computed", pseudoChecksum(&a, len(f.Transport)), virtioNeedsChecksum, true},
		} {
			binary.BigEndian.PutUint16(udp[udpChecksumAt:], c.checksum)
			b[0] = c.flags
			var s packetDecoder
			if _, ok := s.load(rxMessage{data: b}); ok != c.ok {
				t.Errorf("%v, checksum %s: accepted %v", a.Src, c.name, ok)
			}
		}
	}
}

func TestShortSegmentsAreCounted(t *testing.T) {
	b := delivered(splitV4, virtioNeedsChecksum, false, 64, 64, 64)
	binary.NativeEndian.PutUint16(b[4:], 15)
	var s packetDecoder
	s.load(rxMessage{data: b})
	for s.next(new(RxFrame)) {
		t.Error("next returned a packet of 15 bytes")
	}
	if n := s.runts(); n != 16 {
		t.Errorf("%d runts counted, want 16", n)
	}
}

// FuzzPacketReceive decodes arbitrary messages. The decoder must return or count every byte, and
// access no others.
func FuzzPacketReceive(f *testing.F) {
	f.Add(delivered(splitV4, 0, false, 64))
	f.Add(delivered(splitV6, 0, false, 0))
	f.Add(delivered(splitV4, virtioNeedsChecksum, false, 256, 256, 256, 1))
	f.Add(delivered(splitV4, virtioDataValid, true, 256, 256))
	f.Add(delivered(splitV6, virtioNeedsChecksum, false, 1024, 1024, 3))
	tagged := splitV4
	tagged.Tagged, tagged.TCI = true, 0x6000
	f.Add(delivered(tagged, 0, false, 64))
	runts := delivered(splitV4, virtioNeedsChecksum, false, 64, 64)
	binary.NativeEndian.PutUint16(runts[4:], 5)
	f.Add(runts)
	f.Add(append(make([]byte, virtioLen), roceV1Frame(false)...))
	f.Add(append(make([]byte, virtioLen), changed(roceV1Frame(false), sgidAt, 0x20)...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		given := bytes.Clone(b)
		var s packetDecoder
		d, ok := s.load(rxMessage{data: b})
		if !ok && d >= NumDrops {
			t.Fatalf("rejected for %v", d)
		}
		total, n := 0, 0
		for {
			var f RxFrame
			if !s.next(&f) {
				break
			}
			n++
			total += len(f.Head) + packet.ICRCLen
			if len(f.Head) < packet.BTHLen || f.Tail != nil || f.Src.Is4() != f.Dst.Is4() && (f.Network != packet.RoCEv1 || !f.Dst.IsMulticast()) {
				t.Fatalf("invalid packet %+v", f)
			}
			if !bytes.Contains(b, f.Head) {
				t.Fatal("a packet with bytes outside the message")
			}
		}
		if !ok && n > 0 {
			t.Fatalf("rejected for %v, and %d packets", d, n)
		}
		if ok && n == 0 && s.runts() == 0 {
			t.Fatal("accepted without packets or runts")
		}
		if total > len(b) {
			t.Fatalf("%d bytes of packets in a frame of %d", total, len(b))
		}
		if !bytes.Equal(b, given) {
			t.Fatal("the frame was changed")
		}
	})
}
