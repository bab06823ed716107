package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

func address(src, dst string) *Addressing {
	return &Addressing{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		TClass: 0x6a, HopLimit: 61, SrcPort: 0xc123,
	}
}

// addressings returns one Addressing of each kind.
func addressings() map[string]*Addressing {
	m := map[string]*Addressing{
		"IPv4":            address("192.0.2.1", "192.0.2.2"),
		"IPv4 VLAN":       address("192.0.2.1", "192.0.2.2"),
		"IPv4 without DF": address("192.0.2.1", "192.0.2.2"),
		"IPv6":            address("2001:db8::1", "2001:db8::2"),
		"IPv6 VLAN":       address("2001:db8::1", "2001:db8::2"),

		"RoCE v1":                  address("fe80::1", "fe80::2"),
		"RoCE v1 IPv4-mapped VLAN": address("192.0.2.1", "192.0.2.2"),
		"RoCE v1 of both families": address("192.0.2.1", "ff0e::ffff:e000:1"),
	}
	for name, a := range m {
		if strings.Contains(name, "VLAN") {
			a.Tagged, a.TCI = true, 0x6123
		}
		if strings.Contains(name, "RoCE v1") {
			a.Network, a.SrcPort = RoCEv1, 0
		}
		if a.IsIPv4() {
			a.ID, a.MayFragment = 0xbeef, strings.Contains(name, "without DF")
		} else {
			a.FlowLabel = 0x6258a
		}
	}
	return m
}

func sendOnly(payload string) *Tx {
	t := new(Tx)
	t.Set(&Header{BTH: BTH{Opcode: SendOnly, PKey: DefaultPKey, DestQP: 0x11, PSN: 7, AckReq: true}}, []byte(payload))
	return t
}

func TestFrameRoundTripKeepsAddressing(t *testing.T) {
	for name, a := range addressings() {
		t.Run(name, func(t *testing.T) {
			tx := sendOnly("hello")
			b := append(AppendFrame([]byte("x"), a, tx)[1:], "trailer"...)
			var f Frame
			if err := ParseFrame(b, &f); err != nil {
				t.Fatal(err)
			}
			want := *a
			if a.Network == RoCEv2 {
				want.DstPort = UDPPort
			}
			if f.Addressing != want {
				t.Errorf("%+v\nwant %+v", f.Addressing, want)
			}
			if !f.ICRCOK() || !f.IPChecksumOK() || string(f.Trailer) != "trailer" || len(f.Transport) != tx.Len+ICRCLen {
				t.Errorf("ICRC %v, IP checksum %v, trailer %q, transport %d", f.ICRCOK(), f.IPChecksumOK(), f.Trailer, len(f.Transport))
			}
			parse := ParseIP
			if a.Network == RoCEv1 {
				parse = ParseGRH
			}
			var fromIP Frame
			if err := parse(b[a.HeaderLen()-a.IPHeaderLen():], &fromIP); err != nil || !bytes.Equal(fromIP.Transport, f.Transport) {
				t.Errorf("from the IP header: %v", err)
			}
		})
	}
}

func TestICRCCoversAllButMutableFields(t *testing.T) {
	for name, a := range addressings() {
		frame := AppendFrame(nil, a, sendOnly("data"))
		ip := a.HeaderLen() - a.IPHeaderLen()
		free := map[int]byte{} // by offset from the IP header: bits that the ICRC does not cover
		udp := IPv6Len
		if a.IsIPv4() {
			udp = IPv4Len
			free[1], free[8], free[10], free[11] = 0xff, 0xff, 0xff, 0xff
		} else {
			free[0], free[1], free[2], free[3], free[7] = 0x0f, 0xff, 0xff, 0xff, 0xff
		}
		if a.Network == RoCEv2 {
			free[udp+6], free[udp+7] = 0xff, 0xff
		}
		free[a.IPHeaderLen()+4] = 0xff
		for i := ip; i < len(frame); i++ {
			for bit := range 8 {
				frame[i] ^= 1 << bit
				var f Frame
				if err := ParseFrame(frame, &f); err == nil && f.ICRCOK() != (free[i-ip]>>bit&1 != 0) {
					t.Errorf("%s: bit %d of byte %d after the start of the IP header flipped: ICRCOK is %v", name, bit, i-ip, f.ICRCOK())
				}
				frame[i] ^= 1 << bit
			}
		}
	}
}

func TestICRCBaseServesPacketsOfOneSuperPacket(t *testing.T) {
	for name, a := range addressings() {
		tx := sendOnly("data")
		base := a.ICRCBase(tx.Len)
		for _, id := range []uint16{0, 1, 0xff, 0x100, 0x8000, 0xffff} {
			segment := *a
			segment.ID = id
			if !a.IsIPv4() {
				segment.ID = 0
			}
			var f Frame
			if err := ParseFrame(AppendFrame(nil, &segment, tx), &f); err != nil {
				t.Fatal(err)
			}
			covered := f.Transport[:tx.Len]
			if got := base.Tx(id, tx); got != f.ICRC() || base.Bytes(id, covered) != got {
				t.Errorf("%s, Identification %#x: %#x, of the bytes %#x, want %#x", name, id, got, base.Bytes(id, covered), f.ICRC())
			}
			for _, guess := range []uint16{segment.ID, 0x1234} {
				if got, ok := base.RecoverID(guess, f.Transport); !ok || got != segment.ID {
					t.Errorf("%s, Identification %#x: recovered %#x, %v", name, id, got, ok)
				}
			}
		}
	}
}

func TestICRCIgnoresPayloadFragmentation(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789abc"), 400)
	for name, a := range addressings() {
		var whole, cut Tx
		h := Header{BTH: BTH{Opcode: SendOnly, DestQP: 3}}
		whole.Set(&h, payload)
		cut.Set(&h, payload[:1], payload[1:77], payload[77:4099], payload[4099:])
		want := ICRCTx(a, &whole)
		flat := append(append(whole.Head[:whole.HeadLen:whole.HeadLen], payload...), padding[:whole.Pad]...)
		for how, got := range map[string]uint32{
			"cut":    ICRCTx(a, &cut),
			"gather": ICRC(a, cut.Head[:cut.HeadLen], cut.Payload, int(cut.Pad)),
			"flat":   ICRCBytes(a, flat),
		} {
			if got != want {
				t.Errorf("%s, %s: %#x, want %#x", name, how, got, want)
			}
		}
	}
}

// The ICRC of a packet that ends inside its BTH covers the bytes present, with the same bits
// masked. No NIC sends such a packet.
func TestICRCOfPacketThatEndsInsideItsBTH(t *testing.T) {
	for name, a := range addressings() {
		whole := sendOnly("data")
		bth := whole.Head[:whole.HeadLen]
		for n := range len(bth) + 1 {
			short := Tx{Head: whole.Head, HeadLen: uint8(n), Len: n}
			frame := AppendFrame(nil, a, &short)
			ip := a.HeaderLen() - a.IPHeaderLen()
			udp := ip + IPv6Len
			ones := []int{ip + 1, ip + 2, ip + 3, ip + 7}
			if a.IsIPv4() {
				udp = ip + IPv4Len
				ones = []int{ip + 1, ip + 8, ip + 10, ip + 11}
			}
			covered := append(bytes.Repeat([]byte{0xff}, 8), frame[ip:len(frame)-ICRCLen]...)
			if !a.IsIPv4() {
				covered[8] |= 0x0f
			}
			if a.Network == RoCEv2 {
				ones = append(ones, udp+6, udp+7)
			}
			if n > 4 {
				ones = append(ones, a.HeaderLen()+4)
			}
			for _, i := range ones {
				covered[8+i-ip] = 0xff
			}
			want := crc32.ChecksumIEEE(covered)
			gather := ICRC(a, short.Head[:n], nil, 0)
			if got := binary.LittleEndian.Uint32(frame[len(frame)-ICRCLen:]); got != want || gather != want || ICRCBytes(a, bth[:n]) != want {
				t.Errorf("%s, %d bytes: %#x, gathered %#x, want %#x", name, n, got, gather, want)
			}
		}
	}
}

func TestParseErrorsHaveReasonAndOffset(t *testing.T) {
	v4, v6 := address("192.0.2.1", "192.0.2.2"), address("2001:db8::1", "2001:db8::2")
	v1 := *v4
	v1.Network = RoCEv1
	set16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for _, c := range []struct {
		name   string
		a      *Addressing
		change func([]byte) []byte
		reason error
		offset int
	}{
		{"empty", v4, cut(0), ErrTruncated, 0},
		{"Ethernet cut", v4, cut(13), ErrTruncated, 13},
		{"VLAN tag cut", v4, func(b []byte) []byte { return set16(12, 0x8100)(b)[:17] }, ErrTruncated, 17},
		{"ARP", v4, set16(12, 0x0806), ErrNotRoCE, 12},
		{"IPv4 header cut", v4, cut(33), ErrTruncated, 33},
		{"IPv4 version", v4, set16(14, 0x6500), ErrIPHeader, 14},
		{"IPv4 header length 4 words", v4, set16(14, 0x4400), ErrIPHeader, 14},
		{"IPv4 options", v4, set16(14, 0x4600), ErrIPOptions, 14},
		{"IPv4 first fragment", v4, set16(20, 0x2000), ErrFragment, 20},
		{"IPv4 later fragment", v4, set16(20, 0x0010), ErrFragment, 20},
		{"IPv4 reserved flag", v4, set16(20, 0xc000), ErrIPHeader, 20},
		{"TCP", v4, set16(22, 0x4006), ErrNotRoCE, 23},
		{"IPv4 length shorter than its UDP header", v4, set16(16, 27), ErrUDPLength, 34},
		{"IPv4 longer than the frame", v4, set16(16, 1000), ErrUDPLength, 38},
		{"UDP header cut", v4, cut(41), ErrTruncated, 41},
		{"frame cut", v4, cut(60), ErrTruncated, 60},
		{"another port", v4, set16(36, 4790), ErrNotRoCE, 36},
		{"UDP length", v4, set16(38, 31), ErrUDPLength, 38},
		{"no room for BTH and ICRC", v4, func(b []byte) []byte { return set16(38, 8+15)(set16(16, 28+15)(b)) }, ErrShort, 57},
		{"IPv6 header cut", v6, cut(53), ErrTruncated, 53},
		{"IPv6 version", v6, set16(14, 0x4500), ErrIPHeader, 14},
		{"IPv6 extension header", v6, set16(20, 0x0040), ErrNotRoCE, 20},
		{"IPv6 length shorter than its UDP header", v6, set16(18, 7), ErrUDPLength, 54},
		{"GRH cut", &v1, cut(53), ErrTruncated, 53},
		{"GRH version", &v1, set16(14, 0x4500), ErrIPHeader, 14},
		{"raw packet of RoCE v1", &v1, set16(20, 0x3b40), ErrNotRoCE, 20},
		{"GRH longer than the frame", &v1, set16(18, 21), ErrTruncated, 74},
		{"no room for BTH and ICRC behind the GRH", &v1, set16(18, 15), ErrShort, 69},
	} {
		b := c.change(AppendFrame(nil, c.a, sendOnly("data")))
		var f Frame
		err := ParseFrame(b, &f)
		var pe *ParseError
		if !errors.Is(err, c.reason) || !errors.As(err, &pe) || pe.Offset != c.offset {
			t.Errorf("%s: %v, want %v at %d", c.name, err, c.reason, c.offset)
		}
	}
	var f Frame
	for _, c := range []struct {
		b      []byte
		reason error
	}{{nil, ErrTruncated}, {[]byte{0x45}, ErrTruncated}, {[]byte{0x60}, ErrTruncated}, {[]byte{0x10}, ErrIPHeader}} {
		if err := ParseIP(c.b, &f); !errors.Is(err, c.reason) {
			t.Errorf("ParseIP(%x): %v, want %v", c.b, err, c.reason)
		}
	}
	if got, want := ParseFrame(make([]byte, 3), &f).Error(), "offset 3: frame is shorter than its headers announce"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestGRHHoldsTheIPHeader(t *testing.T) {
	for name, a := range addressings() {
		frame := AppendFrame(nil, a, sendOnly("datagram"))
		var f Frame
		if err := ParseFrame(frame, &f); err != nil {
			t.Fatal(err)
		}
		var g GRH
		for i := range g {
			g[i] = 0xee
		}
		g.Put(&f.Addressing, len(f.Transport))
		want := f.IP[:IPv6Len]
		if a.IsIPv4() {
			want = append(make([]byte, 20), f.IP[:IPv4Len]...)
		}
		if !bytes.Equal(g[:], want) {
			t.Errorf("%s:\n%x, want\n%x", name, g, want)
		}
		if g.Is4() != a.IsIPv4() || g.IsIP() != (a.Network == RoCEv2) || g.Src() != a.Src || g.Dst() != a.Dst || g.TClass() != a.TClass || g.HopLimit() != a.HopLimit || g.FlowLabel() != a.FlowLabel {
			t.Errorf("%s: GRH has IPv4 %v, source %v, destination %v, traffic class %#x, hop limit %d, flow label %#x", name, g.Is4(), g.Src(), g.Dst(), g.TClass(), g.HopLimit(), g.FlowLabel())
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	for _, file := range fixtureFiles(f) {
		if frames := pcapFrames(f, file); len(frames) > 0 {
			f.Add(frames[0])
			f.Add(frames[len(frames)/2])
		}
	}
	for _, a := range addressings() {
		f.Add(AppendFrame(nil, a, sendOnly("seed")))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr Frame
		if err := ParseFrame(b, &fr); err != nil {
			var pe *ParseError
			if !errors.As(err, &pe) || pe.Offset < 0 || pe.Offset > len(b) {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
			return
		}
		fr.ICRCOK()
		RecoverID(&fr.Addressing, fr.Transport)
		head := make([]byte, MaxFrameHeaderLen)
		n := fr.PutHeaders(head, len(fr.Transport))
		again := append(append(head[:n], fr.Transport...), fr.Trailer...)
		if fr.IsIPv4() { // the only derived field
			copy(again[n-IPv4Len-UDPLen+10:][:2], fr.IP[10:12])
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("re-encoded\n%x, was\n%x", again, b)
		}
	})
}
