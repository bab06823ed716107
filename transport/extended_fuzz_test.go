package transport

import (
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// FuzzExtended passes arbitrary packets to an RC queue pair with a bound window, a region for FLUSH
// and local operations in its send queue, or to an XRC target. Nothing may panic, and each packet
// counts as dropped at most once.
func FuzzExtended(f *testing.F) {
	seed := func(op uint8, payload int) []byte {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(op), PSN: defaults.psn}, FETH: packet.FETH{Placement: 1},
			RETH: packet.RETH{VA: windowRegionBase + 1024, Length: uint32(payload)}, XRCSRQ: 5}
		b := make([]byte, packet.MaxHeaderLen)
		b = append(b[:h.Put(b)], make([]byte, payload)...)
		return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
	}
	const x = uint8(packet.XRC)
	f.Add(false, append(seed(packet.WriteFirst, 1024), seed(packet.SendOnlyInv, 8)...))
	f.Add(false, append(seed(packet.AtomicWrite, 8), seed(packet.Flush, 0)...))
	f.Add(false, append(seed(packet.ReadResponseOnly, 0), seed(packet.Acknowledge, 0)...))
	f.Add(true, append(seed(x|packet.SendFirst, 1024), seed(x|packet.SendLastInv, 8)...))
	f.Add(true, append(seed(x|packet.WriteOnlyImm, 64), seed(x|packet.ReadRequest, 0)...))
	f.Fuzz(func(t *testing.T, xrc bool, data []byte) {
		var b *side
		var keys []uint32
		if xrc {
			_, s := connectXRC(t)
			for n, q := range s.srqs {
				q.recv(uint64(n), 0, 1500)
				keys = append(keys, q.region.RKey())
			}
			b = s.side
		} else {
			_, s, r := connectFlush(t)
			s.recv(1, 0, 1500)
			s.recv(2, 0, 1500)
			w := newWindowRegion(s)
			keys = []uint32{r.RKey(), w.key, w.region.RKey(), s.region.RKey()}
			s.post(SendWR{ID: 1, Opcode: ib.WRFlush, Flush: Flush{Placement: 1}})
			s.post(SendWR{ID: 2, Opcode: ib.WRLocalInv, Imm: w.key, Flags: ib.SendFence})
			s.post(SendWR{ID: 3, Opcode: ib.WRAtomicWrite, SGEs: s.sge(0, 8)})
			s.post(w.bindWR(4, nextKey(w.key)))
			b = s
		}
		b.qp.Transmit(&b.env)
		for len(data) >= 2 {
			n := min(int(data[0])<<8|int(data[1]), len(data)-2)
			one := data[2 : 2+n]
			data = data[2+n:]
			var p RxPacket
			m, err := p.Header.Parse(one)
			if err != nil || len(one)-m < int(p.Pad) {
				continue
			}
			if k := int(p.RETH.RKey & 7); k < len(keys) { // otherwise most requests fail at the key
				p.RETH.RKey, p.Atomic.RKey = keys[k], keys[k]
			}
			if k := int(p.Invalidate & 7); k < len(keys) {
				p.Invalidate = keys[k]
			}
			if body := one[m : len(one)-int(p.Pad)]; len(body) > 0 {
				p.Payload, p.Len = [][]byte{body}, len(body)
			}
			b.deliver(&p)
			b.out = b.out[:0]
			b.env.Now += 1 << 20
			if d := b.qp.NextDeadline(); d != 0 && d <= b.env.Now {
				b.qp.Expire(&b.env)
			}
			b.env.Mem.Epoch()
		}
	})
}
