package check

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// FuzzRecords judges captures made from the input, eight bytes for each packet: which of two ends
// sends it to which of two queue pairs, when, and with which PSN. The ICRCs are right.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{0, byte(sendOnly), 1, 1, 1, 0x80, 4, 0, 1, byte(ack), 1, 1, 1, 0, 0, 1})
	f.Add([]byte{0, byte(readReq), 9, 1, 1, 0x80, 200, 0, 1, byte(readOnly), 9, 1, 1, 0, 200, 1, 1, byte(readMiddle), 9, 1, 1, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var rs []capture.Record
		now := time.Unix(1e9, 0)
		for ; len(b) >= 8; b = b[8:] {
			now = now.Add(time.Duration(b[3]) << (b[2] & 31))
			rs = append(rs, capture.Record{No: len(rs) + 1, Time: now, LinkType: capture.Ethernet, Data: fuzzed(b)})
			rs[len(rs)-1].Length = len(rs[len(rs)-1].Data)
		}
		r := Records(rs)
		if r.Total < len(r.Violations) || r.RoCE+r.Other != len(rs) {
			t.Errorf("%d violations of %d, %d packets of %d", len(r.Violations), r.Total, r.RoCE, len(rs))
		}
		if err := r.WriteText(io.Discard); err != nil {
			t.Error(err)
		}
	})
}

func fuzzed(b []byte) []byte {
	from, to := addr(b[0]&1), addr(1-b[0]&1)
	a := packet.Addressing{Src: from, Dst: to, HopLimit: 64, SrcPort: 0xc000, ID: uint16(b[7])}
	v := binary.BigEndian.Uint32(b[4:])
	h := packet.Header{BTH: packet.BTH{
		Opcode: packet.Opcode(b[1]), PKey: packet.DefaultPKey, DestQP: uint32(b[0]>>1&1) + 17,
		PSN: uint32(b[2]) + uint32(b[0]>>2&3)<<19 + 0xfffff0&packet.PSNMask, AckReq: b[5]&0x80 != 0,
	}}
	h.RETH.Length, h.AETH = v, packet.AETH{Syndrome: packet.Syndrome(b[6]), MSN: uint32(b[7])}
	var tx packet.Tx
	tx.Set(&h, make([]byte, int(b[6])*5))
	return packet.AppendFrame(nil, &a, &tx)
}

// FuzzChanged judges a fixture with changed bytes and right ICRCs.
func FuzzChanged(f *testing.F) {
	f.Add(uint8(0), []byte{1, 20, 3})
	f.Fuzz(func(t *testing.T, file uint8, b []byte) {
		names := []string{"loss-read-req", "vp-rnr-multi", "loss-atomic", "vp-all-ops", "reorder-write", "pp-uc-mtu1024"}
		tp := load(t, names[int(file)%len(names)])
		for ; len(b) >= 3; b = b[3:] {
			i := int(b[0]) % len(tp.rs)
			tp.raw(i, func(frame []byte) { frame[atBTH+int(b[1])%packet.MaxHeaderLen%(len(frame)-atBTH)] ^= b[2] })
		}
		tp.judge()
	})
}
