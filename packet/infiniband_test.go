package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"
)

// specPacket is the local packet with its ICRC that the specification computes as an example (IBTA
// 7.8.3).
const specPacket = "7012375c000e17d2" + "0a20248700 87b1b3000dec2a" + "01710a1c015d400238f27a050000000e" +
	"bb884d85fd5cfba4728bc0690ed40000" + "9625b75a"

func infiniBand(global bool) *Addressing {
	a := &Addressing{
		Network: InfiniBand, LRH: LRH{VL: 7, LVer: 1, SL: 3, Reserved2: 2, LNH: LNHLocal, DLID: 0x1234, SLID: 0xc123, Reserved5: 0x15},
		Src: LIDAddr(0xc123), Dst: LIDAddr(0x1234),
	}
	if global {
		a.LRH.LNH = LNHGlobal
		a.Src, a.Dst = netip.MustParseAddr("fe80::2:c903:1:1"), netip.MustParseAddr("192.0.2.7")
		a.TClass, a.FlowLabel, a.HopLimit = 0x6a, 0x6258a, 61
	}
	return a
}

func TestInfiniBandCRCsOfSpecification(t *testing.T) {
	b, err := hex.DecodeString(removeSpaces(specPacket))
	if err != nil {
		t.Fatal(err)
	}
	var f Frame
	if err := ParseInfiniBand(b, &f); err != nil {
		t.Fatal(err)
	}
	want := LRH{VL: 7, SL: 1, LNH: LNHLocal, DLID: 0x375c, SLID: 0x17d2}
	if f.LRH != want || f.Src != LIDAddr(0x17d2) || f.Dst.String() != "::375c%lid" || !f.ICRCOK() {
		t.Errorf("%+v from %v to %v, ICRC %v", f.LRH, f.Src, f.Dst, f.ICRCOK())
	}
	if _, ok := f.VCRC(); ok || !f.VCRCOK() {
		t.Error("a packet without a VCRC has one")
	}
	if err := ParseInfiniBand(binary.LittleEndian.AppendUint16(b, slowVCRC(b)), &f); err != nil || !f.VCRCOK() {
		t.Errorf("VCRC: %v, %v", err, f.VCRCOK())
	}
}

// slowVCRC divides by the generator polynomial bit by bit, in the bit order of the wire.
func slowVCRC(b []byte) uint16 {
	const generator = 1<<16 | 1<<12 | 1<<3 | 1<<1 | 1
	register := uint32(0xffff)
	for _, x := range b {
		for bit := range 8 {
			register = register<<1 ^ uint32(x>>bit&1)<<16
			if register>>16 != 0 {
				register ^= generator
			}
		}
	}
	var sent uint16 // the coefficient of x^15 first, in the lowest bit
	for i := range 16 {
		sent |= uint16(^register>>(15-i)&1) << i
	}
	return sent
}

func removeSpaces(s string) string { return string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)) }

func TestInfiniBandRoundTripKeepsEveryBit(t *testing.T) {
	for _, global := range []bool{false, true} {
		a := infiniBand(global)
		tx := sendOnly("hello")
		b := AppendFrame([]byte("x"), a, tx)[1:]
		var f Frame
		if err := ParseInfiniBand(append(b, "trailer"...), &f); err != nil {
			t.Fatal(err)
		}
		if f.Addressing != *a {
			t.Errorf("global %v: %+v\nwant %+v", global, f.Addressing, *a)
		}
		vcrc, ok := f.VCRC()
		if !ok || vcrc != slowVCRC(b[:len(b)-VCRCLen]) || !f.VCRCOK() || !f.ICRCOK() || len(f.Transport) != tx.Len+ICRCLen || string(f.Trailer[VCRCLen:]) != "trailer" {
			t.Errorf("global %v: VCRC %#x %v %v, ICRC %v, transport %d, trailer %q", global, vcrc, ok, f.VCRCOK(), f.ICRCOK(), len(f.Transport), f.Trailer)
		}
		if got := binary.BigEndian.Uint16(b[4:])&maxPktLen*4 + VCRCLen; int(got) != len(b) {
			t.Errorf("global %v: the LRH announces %d of %d bytes", global, got, len(b))
		}
		if want := global; (f.IP != nil) != want || want && len(f.IP) != len(b)-VCRCLen-LRHLen {
			t.Errorf("global %v: %d bytes from the GRH on", global, len(f.IP))
		}
	}
}

// The ICRC covers what routers and switches do not change, the VCRC everything (IBTA 7.8).
func TestInfiniBandCRCsCoverTheirFields(t *testing.T) {
	for _, global := range []bool{false, true} {
		frame := AppendFrame(nil, infiniBand(global), sendOnly("data"))
		free := map[int]byte{0: 0xf0} // the bits that the ICRC does not cover, by offset: the VL
		bth := LRHLen
		if global {
			for i := range LRHLen {
				free[i] = 0xff
			}
			for i, bits := range []byte{0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 0xff} { // class, flow label, hop limit
				free[LRHLen+i] = bits
			}
			bth += GRHLen
		}
		free[bth+BTHMaskedByte] = 0xff
		masked := bytes.Clone(frame[:len(frame)-VCRCLen-ICRCLen])
		for i, bits := range free {
			masked[i] |= bits
		}
		if got, want := binary.LittleEndian.Uint32(frame[len(masked):]), crc32.ChecksumIEEE(masked); got != want {
			t.Errorf("global %v: ICRC %#08x, want %#08x", global, got, want)
		}
		tried := 0
		for i := range len(frame) - VCRCLen {
			for bit := range 8 {
				frame[i] ^= 1 << bit
				var f Frame
				if err := ParseInfiniBand(frame, &f); err == nil && f.LRH.LNH == infiniBand(global).LRH.LNH {
					tried++
					if f.ICRCOK() != (free[i]>>bit&1 != 0) {
						t.Errorf("global %v: bit %d of byte %d: ICRC %v", global, bit, i, f.ICRCOK())
					}
					if f.VCRCOK() {
						t.Errorf("global %v: bit %d of byte %d does not change the VCRC", global, bit, i)
					}
				}
				frame[i] ^= 1 << bit
			}
		}
		if tried < 100 {
			t.Errorf("global %v: only %d bits were tried", global, tried)
		}
	}
}

func TestParseInfiniBandRejects(t *testing.T) {
	local, global := AppendFrame(nil, infiniBand(false), sendOnly("data")), AppendFrame(nil, infiniBand(true), sendOnly("data"))
	set := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name   string
		b      []byte
		reason error
		offset int
	}{
		{"nothing", nil, ErrTruncated, 0},
		{"a part of the LRH", local[:7], ErrTruncated, 7},
		{"an LRH", local[:8], ErrTruncated, 8},
		{"cut before the end of the ICRC", local[:len(local)-VCRCLen-1], ErrTruncated, len(local) - VCRCLen - 1},
		{"a part of the GRH", global[:20], ErrTruncated, 20},
		{"raw", set(local, 1, 0), ErrNotRoCE, 1},
		{"raw IPv6", set(local, 1, 1), ErrNotRoCE, 1},
		{"length 0", set(local, 5, 0), ErrShort, 4},
		{"length of LRH, BTH and less than an ICRC", set(local, 5, 5), ErrShort, 4},
		{"a length beyond the frame", set(local, 4, 7), ErrTruncated, len(local)},
		{"another length than the GRH's", set(global, 5, global[5]-1), ErrGRHLength, LRHLen + 4},
		{"another length in the GRH", set(global, LRHLen+5, 9), ErrGRHLength, LRHLen + 4},
		{"another header behind the GRH", set(global, LRHLen+6, 17), ErrNotRoCE, LRHLen + 6},
		{"GRH version", set(global, LRHLen, 0x40), ErrIPHeader, LRHLen},
	} {
		var f Frame
		err := ParseInfiniBand(c.b, &f)
		var pe *ParseError
		if !errors.As(err, &pe) || !errors.Is(err, c.reason) || pe.Offset != c.offset {
			t.Errorf("%s: %v, want %v at %d", c.name, err, c.reason, c.offset)
		}
	}
}

// FuzzParseInfiniBand holds that a packet that parses is encoded the same way again.
func FuzzParseInfiniBand(f *testing.F) {
	f.Add(AppendFrame(nil, infiniBand(false), sendOnly("data")))
	f.Add(AppendFrame(nil, infiniBand(true), sendOnly("data")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr Frame
		if ParseInfiniBand(b, &fr) != nil {
			return
		}
		fr.ICRCOK()
		fr.VCRCOK()
		head := make([]byte, MaxFrameHeaderLen)
		n := fr.PutHeaders(head, len(fr.Transport))
		if !bytes.Equal(head[:n], b[:n]) || n+len(fr.Transport)+len(fr.Trailer) != len(b) {
			t.Errorf("%x\nencoded %x", b, head[:n])
		}
	})
}
