package nic_test

import (
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// An ACK goes behind the reply of a program if both are one super-packet then, and no further.
func TestACKGoesBehindReply(t *testing.T) {
	const (
		send  = packet.Opcode(packet.SendOnly)
		write = packet.Opcode(packet.WriteOnly)
		ack   = packet.Opcode(packet.Acknowledge)
	)
	sends := func(sizes ...int) (l []transport.SendWR) {
		for _, n := range sizes {
			l = append(l, transport.SendWR{Opcode: ib.WRSend, SGEs: []transport.SGE{{Length: uint32(n)}}})
		}
		return l
	}
	for _, c := range []struct {
		name     string
		separate bool // the link makes no super-packets
		unready  bool // the program has posted no receive
		waits    bool // the program waits for events
		other    bool // it replies on another queue pair, whose path is the same
		v1       bool // the connection is of RoCE v1, whose packets the kernel does not segment
		reply    []transport.SendWR
		want     []packet.Opcode
	}{
		{name: "no reply", want: []packet.Opcode{ack}},
		{name: "longer than an ACK", reply: sends(8), want: []packet.Opcode{send, ack}},
		{name: "WRITE", reply: []transport.SendWR{{Opcode: ib.WRRDMAWrite, SGEs: []transport.SGE{{Length: 8}}}}, want: []packet.Opcode{write, ack}},
		{name: "as long", reply: sends(4), want: []packet.Opcode{ack, send}},
		{name: "shorter", reply: sends(0), want: []packet.Opcode{ack, send}},
		{name: "two", reply: sends(8, 16), want: []packet.Opcode{ack, send, send}},
		{name: "two packets", reply: sends(5000), want: []packet.Opcode{ack, packet.SendFirst, packet.SendLast}},
		{name: "no super-packets", separate: true, reply: sends(8), want: []packet.Opcode{ack, send}},
		{name: "RNR NAK", unready: true, reply: sends(8), want: []packet.Opcode{ack, send}},
		{name: "events", waits: true, reply: sends(8), want: []packet.Opcode{ack, send}},
		{name: "RoCE v1", v1: true, reply: sends(8), want: []packet.Opcode{ack, send}},
		{name: "another queue pair", other: true, reply: sends(8), want: []packet.Opcode{ack, send}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			tap := &tapLink{limit: -1, superPackets: !c.separate}
			a, b := w.client(w.nic(1)), w.client(w.tap(2, tap))
			qa, qb := connected(a, b, smallCaps)
			if c.v1 {
				qa, qb = a.qp(smallCaps), b.qp(smallCaps)
				qa.connectWith(attrsV1(1024, qb))
				qb.connectWith(attrsV1(1024, qa))
			}
			if !c.unready {
				qb.recv(1, b.sge(0, 64))
			}
			if c.waits {
				b.cq.Arm(false)
			}
			qa.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
			w.step1()
			if c.other {
				qa, qb = connected(a, b, smallCaps)
			}
			for i, wr := range c.reply {
				qa.recv(uint64(10+i), a.sge(0, 8192))
				wr.RKey, wr.SGEs = a.mr.RKey(), b.sge(0, int(wr.SGEs[0].Length))
				qb.post(wr)
			}
			w.step1() // in which b receives
			var got []packet.Opcode
			for _, h := range tap.sent {
				got = append(got, h.Opcode)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("sent %v, want %v", got, c.want)
			}
		})
	}
}

// An ACK that has gone behind a reply, and waits for the link, is not overtaken by a later one.
func TestACKBehindReplyIsNotOvertaken(t *testing.T) {
	w := newTestFabric(t)
	tap := &tapLink{limit: -1, superPackets: true}
	a, b := w.client(w.nic(1)), w.client(w.tap(2, tap))
	qa, qb := connected(a, b, smallCaps)
	write := transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)}
	qa.post(write)
	w.step1()
	qb.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: a.mr.RKey(), SGEs: b.sge(0, 8)})
	tap.limit = 1
	w.step1()
	qa.post(write)
	w.step1()
	w.step1()
	tap.limit = -1
	w.run(1e6)
	var acks []uint32
	for _, h := range tap.sent {
		if h.Opcode == packet.Acknowledge {
			acks = append(acks, h.PSN)
		}
	}
	if first := tap.sent[0].Opcode; first != packet.WriteOnly || len(acks) < 2 || !slices.IsSorted(acks) {
		t.Errorf("sent %v first, then ACKs of PSNs %d", first, acks)
	}
}

// While READ responses wait for a congested link, the ACK of another queue pair overtakes them.
// That of the same queue pair does not.
func TestACKOvertakesDataOfOtherQueuePairs(t *testing.T) {
	w := newTestFabric(t)
	y, tap := w.tapped(2)
	a, b := w.client(w.nic(1)), w.client(y)
	reader, _ := connected(a, b, smallCaps)
	writer, _ := connected(a, b, smallCaps)
	reader.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMARead, RKey: b.mr.RKey(), SGEs: a.sge(0, 10*4096)})
	tap.limit = 3
	w.step1()
	w.step1()
	if len(tap.sent) != 3 {
		t.Fatalf("%d frames were sent", len(tap.sent))
	}
	reader.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
	writer.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
	w.step1()
	w.step1()
	tap.limit = -1
	w.run(1e6)
	if h := tap.sent[3]; h.DestQP != writer.QPN() || h.Opcode != packet.Opcode(packet.RC)|packet.Acknowledge {
		t.Errorf("frame 3 is %v for QP %#x, want the ACK for QP %#x", h.Opcode, h.DestQP, writer.QPN())
	}
	for i, h := range tap.sent[4:] {
		if h.DestQP != reader.QPN() || h.Opcode.Info().Kind == packet.KindAck != (i == 7) {
			t.Errorf("frame %d is %v for QP %#x", i+4, h.Opcode, h.DestQP)
		}
	}
	if c := a.Device.Counters(); c.ImpliedNAK != 0 || c.Retransmitted != 0 {
		t.Errorf("%d implied NAKs, %d packets retransmitted", c.ImpliedNAK, c.Retransmitted)
	}
}

// The same while responses of another queue pair, which waited behind, are discarded because their
// requester has requested them again.
func TestACKDoesNotOvertakeAfterResponsesAreDiscarded(t *testing.T) {
	w := newTestFabric(t)
	y, tap := w.tapped(2)
	a, b := w.client(w.nic(1)), w.client(y)
	first, _ := connected(a, b, smallCaps)
	second, far := a.qp(smallCaps), b.qp(smallCaps)
	short := attrs(4096, far)
	short.Timeout = 9 // 2.1 ms
	second.connectWith(short)
	far.connect(4096, second)
	tap.limit = 0
	first.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMARead, RKey: b.mr.RKey(), SGEs: a.sge(0, 4*4096)})
	second.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMARead, RKey: b.mr.RKey(), SGEs: a.sge(0, 10*4096)})
	w.step1()
	w.step1()
	for a.Device.Counters().LocalACKTimeout == 0 {
		w.now += 1e5
		w.engine.Step(w.now)
	}
	w.step1()
	w.step1()
	first.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
	w.step1()
	w.step1()
	tap.limit = -1
	w.run(1e6)
	i := 0
	for _, h := range tap.sent {
		if h.DestQP == first.QPN() {
			if h.Opcode.Info().Kind == packet.KindAck != (i == 4) {
				t.Errorf("frame %d of the queue pair is %v", i, h.Opcode)
			}
			i++
		}
	}
	if c := a.Device.Counters(); i != 5 || c.ImpliedNAK != 0 || len(tap.sent) != 15 {
		t.Errorf("%d frames of the queue pair, %d of both, %d implied NAKs", i, len(tap.sent), c.ImpliedNAK)
	}
}
