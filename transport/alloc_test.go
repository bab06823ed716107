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

// received sets pkt to what the peer receives of tx, a packet or a run.
func received(pkt *RxPacket, tx *packet.Tx) {
	pkt.Header.Parse(tx.Head[:])
	pkt.Payload, pkt.Len, pkt.Run = tx.Payload, (tx.Len-int(tx.HeadLen)-int(tx.Pad))*tx.Run.Packets(), tx.Run
}

// deliver passes the packets that p emitted to the queue pair of to.
func (p *slotSink) deliver(to *slotSink, pkt *RxPacket) {
	for i := range p.slots[:p.n] {
		tx := &p.slots[i]
		if received(pkt, tx); tx.Run.Repeat == 0 {
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
	x, y, wr, pkt := benchmarkPair(b)
	b.SetBytes(benchmarkMessage)
	x.runs = runs
	for b.Loop() {
		x.post(wr)
		x.exchange(y, pkt)
	}
}

// BenchmarkRequester is the requester's part of BenchmarkWrite: it sends a message and receives its
// ACK.
func BenchmarkRequester(b *testing.B) {
	x, _, wr, ack := benchmarkPair(b)
	for b.Loop() {
		x.post(wr)
		x.transmit()
		_, _, next := x.qp.Progress()
		ack.PSN = (next - 1) & packet.PSNMask
		x.qp.Receive(&x.env, ack)
		x.finishStep()
	}
	if !x.qp.sq.empty() {
		b.Error("not all messages are complete")
	}
}

// BenchmarkResponder is the responder's part: it receives the packets of a message and sends the
// ACK.
func BenchmarkResponder(b *testing.B) {
	x, y, wr, _ := benchmarkPair(b)
	b.SetBytes(benchmarkMessage)
	x.post(wr)
	x.transmit()
	message := make([]RxPacket, x.n)
	for i := range message {
		received(&message[i], &x.slots[i])
	}
	first, _ := y.qp.Expected()
	messages := uint32(0)
	for b.Loop() {
		for i := range message {
			message[i].PSN, _ = y.qp.Expected()
			y.qp.Receive(&y.env, &message[i])
		}
		y.flush()
		y.transmit()
		y.finishStep()
		messages++
	}
	if got, _ := y.qp.Expected(); got != (first+messages*uint32(len(message)))&packet.PSNMask {
		b.Errorf("%d messages, and the expected PSN is %d, was %d", messages, got, first)
	}
}

// benchmarkMessage is the length of the messages of benchmarks.
const benchmarkMessage = 1 << 17

// benchmarkPair returns the two sides of a connection, a WRITE, and the ACK that x has received of
// one.
func benchmarkPair(b *testing.B) (x, y *slotSink, wr SendWR, ack *RxPacket) {
	o := defaults
	o.mtu = 4096
	x, y = connectSinks(&testing.T{}, o)
	wr = SendWR{Opcode: ib.WRRDMAWrite, SGEs: x.sge(0, benchmarkMessage), RemoteAddr: sideBase, RKey: y.region.RKey()}
	ack = &RxPacket{}
	x.post(wr)
	x.exchange(y, ack)
	b.ReportAllocs()
	return x, y, wr, ack
}

// finishStep ends a step, whose packets are gone.
func (p *slotSink) finishStep() {
	p.n = 0
	p.flush()
	p.env.Mem.Epoch()
	p.qp.sq.pool.Recycle()
}
