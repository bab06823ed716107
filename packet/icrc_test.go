package packet

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

func TestRecoverIDFindsIdentificationOfFixturePackets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tried, passed := 0, 0
	for _, file := range fixtureFiles(t) {
		for i, b := range roceFrames(t, file) {
			var f Frame
			if err := ParseFrame(b, &f); err != nil {
				t.Fatal(err)
			}
			hidden := Addressing{Src: f.Src, Dst: f.Dst, SrcPort: f.SrcPort}
			if id, ok := RecoverID(&hidden, f.Transport); !ok || id != f.ID {
				t.Errorf("%s: RoCEv2 frame %d: %#x, %v; want %#x", filepath.Base(file), i, id, ok, f.ID)
			}
			corrupt := append([]byte(nil), f.Transport...)
			binary.LittleEndian.PutUint32(corrupt[len(corrupt)-ICRCLen:], rnd.Uint32())
			tried++
			if _, ok := RecoverID(&hidden, corrupt); ok {
				passed++
			}
		}
	}
	// A random CRC matches some Identification with probability 2^-15.
	if tried < 1000 || passed > tried/1000 {
		t.Errorf("%d of %d packets with a random ICRC passed", passed, tried)
	}
}

func TestRecoverIDRejectsCorruptedPackets(t *testing.T) {
	for name, a := range addressings() {
		transport := AppendFrame(nil, a, sendOnly("payload"))[a.HeaderLen():]
		if id, ok := RecoverID(a, transport); !ok || id != a.ID {
			t.Errorf("%s: recovered %#x, %v", name, id, ok)
		}
		for i := range transport {
			for bit := range 8 {
				if i == 4 {
					continue // the ICRC does not cover resv8a
				}
				transport[i] ^= 1 << bit
				if id, ok := RecoverID(a, transport); ok {
					t.Errorf("%s: bit %d of byte %d flipped: accepted as Identification %#x", name, bit, i, id)
				}
				transport[i] ^= 1 << bit
			}
		}
		other := *a
		other.SrcPort++
		if _, ok := RecoverID(&other, transport); ok && a.Network == RoCEv2 {
			t.Errorf("%s: accepted with another port", name)
		}
		if _, ok := RecoverID(a, transport[:BTHLen+ICRCLen-1]); ok {
			t.Errorf("%s: accepted without room for BTH and ICRC", name)
		}
	}
}

func TestRecoverIDAtEveryLength(t *testing.T) {
	a := address("192.0.2.1", "192.0.2.2")
	buf := make([]byte, 66000)
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	for _, n := range []int{12, 13, 14, 15, 16, 27, 28, 1024 + 28, 4096 + 56, 4140, 4144, 4148, 9001, 65535 - 32} {
		for _, id := range []uint16{0, 1, 0x8000, 0xffff} {
			a.ID = id
			binary.LittleEndian.PutUint32(buf[n:], ICRCBytes(a, buf[:n]))
			if got, ok := RecoverID(a, buf[:n+ICRCLen]); !ok || got != id {
				t.Errorf("%d bytes: %#x, %v; want %#x", n, got, ok, id)
			}
			binary.LittleEndian.PutUint32(buf[n:], 0x03020100)
		}
	}
}

// dataPath returns what a link does for each packet, by name.
func dataPath() map[string]func() {
	a4, a6 := address("192.0.2.1", "192.0.2.2"), address("2001:db8::1", "2001:db8::2")
	data := make([]byte, 4096)
	tx := new(Tx)
	h := &Header{BTH: BTH{Opcode: WriteOnly, PKey: DefaultPKey, DestQP: 0x11}}
	tx.Set(h, data[:2048], data[2048:])
	a1 := *a6
	a1.Network = RoCEv1
	frame4, frame6, frame1 := AppendFrame(nil, a4, tx), AppendFrame(nil, a6, tx), AppendFrame(nil, &a1, tx)
	out := make([]byte, MaxFrameHeaderLen)
	var f4, f6, f1 Frame
	parse := func(b []byte, f *Frame) {
		if err := ParseFrame(b, f); err != nil {
			panic(err)
		}
	}
	parse(frame4, &f4)
	parse(frame6, &f6)
	parse(frame1, &f1)
	payload := [][]byte{data[:2048], data[2048:]}
	var back Header
	return map[string]func(){
		"ParseFrame4": func() { parse(frame4, &f4) },
		"ParseFrame6": func() { parse(frame6, &f6) },
		"ParseHeader": func() { back.Parse(f4.Transport) },
		"SetTx":       func() { tx.Begin(); tx.Add(payload[0]); tx.Add(payload[1]); tx.Finish(h) },
		"PutHeaders4": func() { a4.PutHeaders(out, tx.Len+ICRCLen) },
		"PutHeaders6": func() { a6.PutHeaders(out, tx.Len+ICRCLen) },
		"ICRCTx4":     func() { ICRCTx(a4, tx) },
		"ICRCTx6":     func() { ICRCTx(a6, tx) },
		"ICRCOK4":     func() { f4.ICRCOK() },
		"RecoverID":   func() { RecoverID(a4, f4.Transport) },

		"ParseFrameRoCEv1": func() { parse(frame1, &f1) },
		"PutHeadersRoCEv1": func() { a1.PutHeaders(out, tx.Len+ICRCLen) },
		"ICRCTxRoCEv1":     func() { ICRCTx(&a1, tx) },
		"ICRCOKRoCEv1":     func() { f1.ICRCOK() },
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	for name, f := range dataPath() {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %g allocations", name, n)
		}
	}
}

func BenchmarkPacket(b *testing.B) {
	for name, f := range dataPath() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
