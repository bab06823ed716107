package packet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// distinctHeader sets every field of every header to a distinctive value.
func distinctHeader(o Opcode) Header {
	return Header{
		BTH: BTH{
			Opcode: o, Solicited: true, MigReq: true, Pad: 2, TVer: 5, PKey: 0x8001, FECN: true, BECN: true,
			Reserved6: 0x2a, DestQP: 0xabcdef, AckReq: true, Reserved7: 0x55, PSN: 0xfedcba,
		},
		RETH: RETH{0x0102030405060708, 0x11121314, 0x21222324}, AETH: AETH{0x7e, 0x313233},
		Atomic: AtomicETH{0x4142434445464748, 0x51525354, 0x6162636465666768, 0x7172737475767778}, OrigData: 0x8182838485868788,
		Imm: 0x91929394, Invalidate: 0xa1a2a3a4, DETH: DETH{0xb1b2b3b4, 0xc1c2c3, 0xc0}, FETH: FETH{3, 1, 0xd1d2d3c0},
		XRCSRQ: 0xe1e2e3, XRCResv: 0xe0,
	}
}

const distinctBTH = "e5 8001 eaabcdef d5fedcba" // without the opcode

func TestHeaderLayoutMatchesSpecification(t *testing.T) {
	const (
		reth, aeth = "0102030405060708 11121314 21222324", "7e313233"
		atomic     = "4142434445464748 51525354 6162636465666768 7172737475767778"
		xrceth     = "e0e1e2e3"
	)
	for _, c := range []struct {
		o        Opcode
		extended string
	}{
		{0x00, ""}, {0x05, "91929394"}, {0x0a, reth}, {0x0b, reth + "91929394"}, {0x0c, reth}, {0x0d, aeth}, {0x11, aeth},
		{0x12, aeth + "8182838485868788"}, {0x13, atomic}, {0x14, atomic}, {0x17, "a1a2a3a4"}, {0x1c, "d1d2d3d3" + reth}, {0x1d, reth},
		{0x64, "b1b2b3b4 c0c1c2c3"}, {0x65, "b1b2b3b4 c0c1c2c3 91929394"},
		{0xa4, xrceth}, {0xab, xrceth + reth + "91929394"}, {0xb3, xrceth + atomic}, {0xb7, xrceth + "a1a2a3a4"}, {0xb1, aeth}, {0x81, ""},
	} {
		want, err := hex.DecodeString(hex.EncodeToString([]byte{byte(c.o)}) + stripSpaces(distinctBTH+c.extended))
		if err != nil {
			t.Fatal(err)
		}
		var b [MaxHeaderLen]byte
		h := distinctHeader(c.o)
		if n := h.Put(b[:]); !bytes.Equal(b[:n], want) {
			t.Errorf("%v:\n%x, want\n%x", c.o, b[:n], want)
		}
		var back Header
		if n, err := back.Parse(want); n != len(want) || err != nil {
			t.Errorf("%v: Parse: %d, %v", c.o, n, err)
		}
		var again [MaxHeaderLen]byte
		if n := back.Put(again[:]); !bytes.Equal(again[:n], want) {
			t.Errorf("%v: parsed and put again:\n%x, want\n%x", c.o, again[:n], want)
		}
		if _, err := back.Parse(want[:len(want)-1]); !errors.Is(err, ErrShort) {
			t.Errorf("%v: one byte short: %v", c.o, err)
		}
	}
}

func stripSpaces(s string) string { return string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)) }

func TestParseReturnsBTHOfUnassignedOpcode(t *testing.T) {
	h := distinctHeader(0x1f)
	var b [MaxHeaderLen]byte
	n := h.Put(b[:])
	var back Header
	if _, err := back.Parse(b[:n]); n != BTHLen || !errors.Is(err, ErrOpcode) || back.BTH != h.BTH {
		t.Errorf("%d bytes, %v, %+v", n, err, back.BTH)
	}
	if back.BTH.String() != "Opcode(0x1f) qp=0xabcdef psn=16702650" {
		t.Error(back.BTH.String())
	}
}

func TestPayloadLen(t *testing.T) {
	for _, c := range []struct {
		o    Opcode
		pad  uint8
		n    int
		want int
		err  error
	}{
		{0x04, 0, 12, 0, nil}, {0x04, 3, 16, 1, nil}, {0x04, 3, 15, 0, nil}, {0x04, 3, 14, 0, ErrPad}, {0x04, 0, 11, 0, ErrShort},
		{0x0a, 0, 28 + 4096, 4096, nil}, {0x0a, 1, 28, 0, ErrPad}, {0x0a, 0, 27, 0, ErrShort},
	} {
		h := Header{BTH: BTH{Opcode: c.o, Pad: c.pad}}
		if got, err := h.PayloadLen(c.n); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%v pad %d, %d bytes: %d, %v; want %d, %v", c.o, c.pad, c.n, got, err, c.want, c.err)
		}
	}
}

func TestTxPadsToFourBytesAndReusesStorage(t *testing.T) {
	var tx Tx
	data := make([]byte, 9)
	for n := range 9 {
		h := Header{BTH: BTH{Opcode: SendOnly, Pad: 1}}
		tx.Set(&h, data[:n/2], nil, data[n/2:n])
		if pad := -n & 3; tx.Pad != uint8(pad) || h.Pad != tx.Pad || tx.Len != BTHLen+n+pad || tx.Head[1]>>4&3 != tx.Pad {
			t.Errorf("%d bytes: pad %d, len %d, header %x", n, tx.Pad, tx.Len, tx.Head[:tx.HeadLen])
		}
		for _, p := range tx.Payload {
			if len(p) == 0 {
				t.Errorf("%d bytes: empty payload slice", n)
			}
		}
	}
}

func FuzzHeader(f *testing.F) {
	seen := map[byte]bool{}
	for _, file := range fixtureFiles(f) {
		for _, b := range roceFrames(f, file) {
			var fr Frame
			if ParseFrame(b, &fr) == nil && !seen[fr.Transport[0]] {
				seen[fr.Transport[0]] = true
				f.Add(fr.Transport[:min(len(fr.Transport), MaxHeaderLen)])
			}
		}
	}
	for _, o := range []Opcode{0xb4, 0x1c, 0x1d, OpcodeCNP, 0x55} {
		h := distinctHeader(o)
		b := make([]byte, MaxHeaderLen)
		f.Add(b[:h.Put(b)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		n, err := h.Parse(b)
		if err != nil {
			return
		}
		var out [MaxHeaderLen]byte
		if m := h.Put(out[:]); m != n || !bytes.Equal(out[:m], b[:n]) {
			t.Fatalf("parsed %x, put %x", b[:n], out[:m])
		}
		if _, err := again.Parse(out[:n]); err != nil || again != h {
			t.Fatalf("%+v, again %+v, %v", h, again, err)
		}
	})
}
