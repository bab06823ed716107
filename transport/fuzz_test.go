package transport

import (
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// FuzzResponder passes arbitrary requests and replies to a queue pair that has outstanding work.
// Nothing may panic, no byte outside the region may change, and each packet counts as dropped at
// most once.
func FuzzResponder(f *testing.F) {
	seed := func(h packet.Header, payload int) []byte {
		b := make([]byte, packet.MaxHeaderLen)
		return append(b[:h.Put(b)], make([]byte, payload)...)
	}
	rec := func(ps ...[]byte) (out []byte) {
		for _, p := range ps {
			out = append(out, byte(len(p)>>8), byte(len(p)))
			out = append(out, p...)
		}
		return out
	}
	for _, op := range []uint8{packet.SendOnly, packet.SendFirst, packet.WriteFirst, packet.WriteOnlyImm, packet.ReadRequest, packet.FetchAdd, packet.CompareSwap, packet.Acknowledge, packet.ReadResponseFirst, packet.AtomicAcknowledge} {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(op), PSN: defaults.psn}, RETH: packet.RETH{VA: sideBase, Length: 64}}
		h2 := h
		h2.PSN = packet.PSNAdd(h.PSN, 1)
		f.Add(rec(seed(h, 64), seed(h2, 1024), seed(h, 64)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := connect(t, defaults)
		for i := range 4 {
			b.recv(uint64(i), 1000*i, 1000)
			b.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: b.sge(0, 1500)})
		}
		b.post(SendWR{ID: 9, Opcode: ib.WRRDMARead, SGEs: b.sge(0, 3000), RemoteAddr: sideBase, RKey: a.region.RKey()})
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
			if p.RETH.RKey&1 == 0 { // half of the keys are valid, otherwise most requests fail there
				p.RETH.RKey, p.Atomic.RKey = b.region.RKey(), b.region.RKey()
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
		// Every work request completes once the queue pair is in error.
		b.qp.Fail(&b.env, ib.EventQPFatal)
		b.qp.Transmit(&b.env)
		sends := 0
		for _, c := range b.done {
			if !c.Recv {
				sends++
			}
		}
		if sends != 5 {
			t.Fatalf("%d of 5 send work requests completed", sends)
		}
	})
}
