package transport

import (
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// A slotSink is a sink that reuses its transmit slots.
type slotSink struct {
	*side
	slots []packet.Tx
	n     int
	runs  bool
}

func (p *slotSink) Packet(*QP) *packet.Tx {
	if p.n == len(p.slots) {
		return nil
	}
	p.n++
	return &p.slots[p.n-1]
}
func (p *slotSink) Discard(*QP, uint32, uint32) {}
func (p *slotSink) Room(*QP) int                { return len(p.slots) - p.n }
func (p *slotSink) Last(*QP) bool               { return p.Room(nil) == 1 }
func (p *slotSink) Run(*QP) int {
	if !p.runs {
		return 0
	}
	return p.Room(nil) - 1
}
func (p *slotSink) Complete(*QP, *Completion) {}

// deliver passes the packets that p emitted to the queue pair of to.
func (p *slotSink) deliver(to *slotSink, pkt *RxPacket) {
	for i := range p.slots[:p.n] {
		tx := &p.slots[i]
		pkt.Header.Parse(tx.Head[:])
		pkt.Payload, pkt.Len, pkt.Run = tx.Payload, tx.Len-int(tx.HeadLen)-int(tx.Pad), tx.Run
		if pkt.Len *= tx.Run.Packets(); tx.Run.Repeat == 0 {
			to.qp.Receive(&to.env, pkt)
		} else if !to.qp.ReceiveRun(&to.env, pkt) {
			panic("a run was not received")
		}
	}
	p.n = 0
}

func connectSinks(t *testing.T, o pairOptions) (a, b *slotSink) {
	x, y := connect(t, o)
	a, b = &slotSink{side: x, slots: make([]packet.Tx, 64)}, &slotSink{side: y, slots: make([]packet.Tx, 64)}
	x.env.Sink, y.env.Sink = a, b
	return a, b
}

func (p *slotSink) exchange(b *slotSink, pkt *RxPacket) {
	for !p.qp.sq.empty() {
		p.transmit()
		p.deliver(b, pkt)
		b.flush()
		b.transmit()
		b.deliver(p, pkt)
		p.flush()
		p.env.Mem.Epoch()
		b.env.Mem.Epoch()
		p.qp.sq.pool.Recycle()
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	o := defaults
	o.mtu = 4096
	for i, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd,
		ib.WRRDMAWrite, ib.WRRDMAWrite} {
		a, b := connectSinks(t, o)
		a.runs = i >= 6
		if i >= 3 && i != 6 {
			a.useCopiedMemory(1 << 20)
			b.useCopiedMemory(1 << 20)
		}
		n := 200000
		if op == ib.WRAtomicFetchAndAdd {
			n = 8
		}
		wr := SendWR{Opcode: op, SGEs: a.sge(0, n), RemoteAddr: sideBase, RKey: b.region.RKey()}
		var pkt RxPacket
		one := func() {
			a.post(wr)
			a.exchange(b, &pkt)
		}
		one()
		if allocs := testing.AllocsPerRun(50, one); allocs != 0 {
			t.Errorf("operation %d allocates %v times a message; case %d", op, allocs, i)
		}
	}
}

func BenchmarkWrite(b *testing.B)     { benchmarkWrite(b, false) }
func BenchmarkWriteRuns(b *testing.B) { benchmarkWrite(b, true) }

func benchmarkWrite(b *testing.B, runs bool) {
	t := &testing.T{}
	o := defaults
	o.mtu = 4096
	x, y := connectSinks(t, o)
	x.runs = runs
	const n = 1 << 17
	wr := SendWR{Opcode: ib.WRRDMAWrite, SGEs: x.sge(0, n), RemoteAddr: sideBase, RKey: y.region.RKey()}
	var pkt RxPacket
	b.SetBytes(n)
	b.ReportAllocs()
	for b.Loop() {
		x.post(wr)
		x.exchange(y, &pkt)
	}
}
