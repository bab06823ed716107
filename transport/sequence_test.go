package transport

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// The tests below pass single packets to a queue pair and check each packet that it emits.

// emitted describes the packets that s emitted: OPCODE, the PSN relative to base, and syndrome and
// MSN if there is an AETH.
func (s *side) emitted(base uint32) string {
	var words []string
	for _, tx := range s.out {
		var h packet.Header
		if _, err := h.Parse(tx.Head[:tx.HeadLen]); err != nil {
			s.t.Fatal(err)
		}
		in := h.Opcode.Info()
		_, name, _ := strings.Cut(in.Name, "_")
		w := fmt.Sprintf("%s%+d", name, packet.PSNDiff(h.PSN, base))
		if in.Headers&packet.HasAETH != 0 {
			if h.AETH.Syndrome.IsACK() {
				w += fmt.Sprintf("/ack/%d", h.AETH.MSN)
			} else {
				w += fmt.Sprintf("/%02x/%d", uint8(h.AETH.Syndrome), h.AETH.MSN)
			}
		}
		words = append(words, w)
	}
	s.out = nil
	return strings.Join(words, " ")
}

// request passes a request packet to the responder of s and lets it reply.
func (s *side) request(op uint8, psn uint32, n int, edit ...func(*RxPacket)) {
	p := RxPacket{Header: packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(op), PKey: packet.DefaultPKey, DestQP: s.qp.QPN(), PSN: psn, AckReq: true}}, Len: n}
	if n > 0 {
		p.Payload = [][]byte{make([]byte, n)}
	}
	p.RETH = packet.RETH{VA: sideBase, RKey: s.region.RKey(), Length: uint32(n)}
	p.Atomic = packet.AtomicETH{VA: sideBase, RKey: s.region.RKey(), SwapAdd: 1}
	for _, e := range edit {
		e(&p)
	}
	s.deliver(&p)
}

// deliver passes a packet to the queue pair of s and lets it reply. The packet counts as dropped at
// most once.
func (s *side) deliver(p *RxPacket) {
	s.t.Helper()
	before := s.count.dropped()
	s.qp.Receive(&s.env, p)
	if n := s.count.dropped() - before; n > 1 {
		s.t.Errorf("%v was dropped %d times: %v", p.Opcode, n, s.count.Drops)
	}
	s.env.Mem.Flush()
	before = s.count.dropped()
	s.qp.Transmit(&s.env)
	if s.count.dropped() != before {
		s.t.Errorf("Transmit dropped a packet: %v", s.count.Drops)
	}
}

func (c *Counters) dropped() (n uint64) {
	for _, d := range c.Drops {
		n += d
	}
	return n
}

func reth(va uint64, n uint32) func(*RxPacket) {
	return func(p *RxPacket) { p.RETH.VA, p.RETH.Length = va, n }
}
func badKey(p *RxPacket)    { p.RETH.RKey ^= 0x5a; p.Atomic.RKey ^= 0x5a }
func unaligned(p *RxPacket) { p.Atomic.VA += 4 }
func noAckReq(p *RxPacket)  { p.AckReq = false }

func statuses(cs []Completion) string {
	var w []string
	for _, c := range cs {
		w = append(w, fmt.Sprintf("%d:%d", c.WRID, c.Status))
	}
	return strings.Join(w, " ")
}

// TestResponderReplies has path MTU 1024 and two posted receives of 2000 bytes. PSNs of requests
// are relative to the expected one. want lists the emitted packets, recv the completions.
func TestResponderReplies(t *testing.T) {
	type req struct {
		op   uint8
		psn  int
		n    int
		edit []func(*RxPacket)
	}
	on := func(op uint8, psn, n int, edit ...func(*RxPacket)) req { return req{op, psn, n, edit} }
	for _, c := range []struct {
		name  string
		reqs  []req
		want  string
		recv  string
		state ib.QPState
		event ib.EventType
	}{
		{"SEND is acknowledged", []req{on(packet.SendOnly, 0, 10)}, "ACKNOWLEDGE+0/ack/1", "1:0", ib.QPSRTS, 0},
		{"without AckReq there is no ACK", []req{on(packet.SendOnly, 0, 10, noAckReq)}, "", "1:0", ib.QPSRTS, 0},
		{"one NAK for a gap until the expected PSN arrives", []req{on(packet.SendOnly, 1, 1), on(packet.SendOnly, 2, 1), on(packet.SendOnly, 0, 1), on(packet.SendOnly, 5, 1)},
			"ACKNOWLEDGE+0/60/0 ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/60/1", "1:0", ib.QPSRTS, 0},
		{"duplicate SEND is acknowledged again, with the newest PSN", []req{on(packet.SendOnly, 0, 1), on(packet.SendOnly, 1, 1), on(packet.SendOnly, 0, 1)},
			"ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2 ACKNOWLEDGE+1/ack/2", "1:0 2:0", ib.QPSRTS, 0},
		{"duplicate before any request was accepted", []req{on(packet.SendOnly, -1, 1)}, "ACKNOWLEDGE-1/ack/0", "", ib.QPSRTS, 0},
		{"duplicate READ is answered again, with the current MSN", []req{on(packet.ReadRequest, 0, 0, reth(sideBase, 2000)), on(packet.SendOnly, 2, 1), on(packet.ReadRequest, 0, 0, reth(sideBase, 2000))},
			"READ_RESPONSE_FIRST+0/ack/1 READ_RESPONSE_LAST+1/ack/1 ACKNOWLEDGE+2/ack/2 READ_RESPONSE_FIRST+0/ack/2 READ_RESPONSE_LAST+1/ack/2", "1:0", ib.QPSRTS, 0},
		{"duplicate READ of a part", []req{on(packet.ReadRequest, 0, 0, reth(sideBase, 3000)), on(packet.ReadRequest, 1, 0, reth(sideBase+1024, 1976))},
			"READ_RESPONSE_FIRST+0/ack/1 READ_RESPONSE_MIDDLE+1 READ_RESPONSE_LAST+2/ack/1 READ_RESPONSE_FIRST+1/ack/1 READ_RESPONSE_LAST+2/ack/1", "", ib.QPSRTS, 0},
		{"duplicate READ of other bytes is dropped", []req{on(packet.ReadRequest, 0, 0, reth(sideBase, 3000)), on(packet.ReadRequest, 1, 0, reth(sideBase+1025, 1000)), on(packet.ReadRequest, 0, 0, reth(sideBase, 3001))},
			"READ_RESPONSE_FIRST+0/ack/1 READ_RESPONSE_MIDDLE+1 READ_RESPONSE_LAST+2/ack/1", "", ib.QPSRTS, 0},
		{"duplicate atomic is answered, not executed", []req{on(packet.FetchAdd, 0, 0), on(packet.FetchAdd, 0, 0), on(packet.CompareSwap, 0, 0)},
			"ATOMIC_ACKNOWLEDGE+0/ack/1 ATOMIC_ACKNOWLEDGE+0/ack/1", "", ib.QPSRTS, 0},
		{"zero-length READ needs no key", []req{on(packet.ReadRequest, 0, 0, badKey)}, "READ_RESPONSE_ONLY+0/ack/1", "", ib.QPSRTS, 0},
		{"zero-length WRITE needs no key", []req{on(packet.WriteOnly, 0, 0, badKey)}, "ACKNOWLEDGE+0/ack/1", "", ib.QPSRTS, 0},
		{"no receive: one RNR NAK for the burst", []req{on(packet.SendOnly, 0, 1), on(packet.SendOnly, 1, 1), on(packet.SendFirst, 2, 1024), on(packet.SendLast, 3, 1), on(packet.SendFirst, 2, 1024)},
			"ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2 ACKNOWLEDGE+2/2c/2 ACKNOWLEDGE+2/2c/2", "1:0 2:0", ib.QPSRTS, 0},
		{"MIDDLE without FIRST", []req{on(packet.SendMiddle, 0, 1024)}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"FIRST then ONLY", []req{on(packet.SendFirst, 0, 1024, noAckReq), on(packet.SendOnly, 1, 1)}, "ACKNOWLEDGE+1/61/0", "1:9 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"SEND then WRITE inside one message", []req{on(packet.SendFirst, 0, 1024, noAckReq), on(packet.WriteLast, 1, 1)}, "ACKNOWLEDGE+1/61/0", "1:9 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"FIRST shorter than the path MTU", []req{on(packet.SendFirst, 0, 1020)}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"LAST without payload", []req{on(packet.SendFirst, 0, 1024, noAckReq), on(packet.SendLast, 1, 0)}, "ACKNOWLEDGE+1/61/0", "1:9 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"ONLY over the path MTU", []req{on(packet.SendOnly, 0, 1025)}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"SEND longer than the receive", []req{on(packet.SendFirst, 0, 1024, noAckReq), on(packet.SendLast, 1, 1000)}, "ACKNOWLEDGE+1/61/0", "1:1 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"WRITE of fewer bytes than the RETH says", []req{on(packet.WriteOnly, 0, 8, reth(sideBase, 9))}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"WRITE of more bytes than the RETH says", []req{on(packet.WriteOnly, 0, 8, reth(sideBase, 7))}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"WRITE beyond 2^31", []req{on(packet.WriteFirst, 0, 1024, reth(sideBase, 1<<31+1))}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"WRITE with a wrong key", []req{on(packet.WriteOnly, 0, 8, badKey)}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"WRITE with immediate and a wrong key", []req{on(packet.WriteOnlyImm, 0, 8, badKey)}, "ACKNOWLEDGE+0/62/0", "1:8 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"WRITE with immediate of several packets and a wrong key", []req{on(packet.WriteFirst, 0, 1024, reth(sideBase, 1032), badKey)}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"WRITE past the region", []req{on(packet.WriteFirst, 0, 1024, reth(sideBase+1<<18-1025, 1026))}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"WRITE that wraps the address space", []req{on(packet.WriteOnly, 0, 8, reth(^uint64(3), 8))}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"READ with a wrong key", []req{on(packet.ReadRequest, 0, 0, reth(sideBase, 8), badKey)}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"READ past the region, after a good one", []req{on(packet.ReadRequest, 0, 0, reth(sideBase, 8)), on(packet.ReadRequest, 1, 0, reth(sideBase, 1<<18+1))},
			"READ_RESPONSE_ONLY+0/ack/1 ACKNOWLEDGE+1/62/1", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"atomic with a wrong key", []req{on(packet.FetchAdd, 0, 0, badKey)}, "ACKNOWLEDGE+0/62/0", "1:5 2:5", ib.QPSErr, ib.EventQPAccessErr},
		{"atomic that is not aligned", []req{on(packet.CompareSwap, 0, 0, unaligned)}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
		{"no replies after a fatal NAK", []req{on(packet.SendMiddle, 0, 1024), on(packet.SendOnly, 0, 1)}, "ACKNOWLEDGE+0/61/0", "1:5 2:5", ib.QPSErr, ib.EventQPReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connect(t, defaults)
			b.recv(1, 1000, 1000)
			b.rq.wrs[0].SGEs = append(b.rq.wrs[0].SGEs, b.sge(5000, 1000)...)
			b.recv(2, 2000, 2000)
			for _, r := range c.reqs {
				b.request(r.op, packet.PSNAdd(defaults.psn, r.psn), r.n, r.edit...)
			}
			if got := b.emitted(defaults.psn); got != c.want {
				t.Errorf("replies %s\nwant    %s", got, c.want)
			}
			if got := statuses(b.done); got != c.recv {
				t.Errorf("completions %s, want %s", got, c.recv)
			}
			if b.qp.State() != c.state {
				t.Errorf("state %v, want %v", b.qp.State(), c.state)
			}
			if c.event != 0 && !slices.Contains(b.events, c.event) {
				t.Errorf("events %v lack %v", b.events, c.event)
			}
		})
	}
}

// The key of a WRITE with immediate is invalidated before its last packet, which takes a receive.
func TestReceiveReportsInvalidatedKeyOfWriteWithImmediate(t *testing.T) {
	for _, posted := range []bool{true, false} {
		_, b := connect(t, defaults)
		want := ""
		if posted {
			b.recv(1, 0, 8)
			b.recv(2, 0, 8)
			want = fmt.Sprintf("1:%d 2:%d", ib.WCLocAccessErr, ib.WCWRFlushErr)
		}
		b.request(packet.WriteFirst, defaults.psn, 1024, reth(sideBase, 1032), noAckReq)
		must(t, b.table.Deregister(b.region))
		b.request(packet.WriteLastImm, packet.PSNAdd(defaults.psn, 1), 8)
		if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+1/62/0" {
			t.Errorf("replies %s", got)
		}
		if got := statuses(b.done); got != want || b.qp.State() != ib.QPSErr {
			t.Errorf("completions %s in %v, want %s", got, b.qp.State(), want)
		}
	}
}

func TestQPAccessFlagsAreCheckedBeforeKeys(t *testing.T) {
	for op, access := range map[uint8]ib.Access{
		packet.WriteOnly: ib.AccessRemoteRead | ib.AccessRemoteAtomic, packet.ReadRequest: ib.AccessRemoteWrite, packet.FetchAdd: ib.AccessRemoteWrite | ib.AccessRemoteRead,
	} {
		_, b := connect(t, defaults)
		must(t, b.qp.Modify(&b.env, &ib.QPAttr{Access: access}, ib.QPMaskAccess))
		b.request(op, defaults.psn, 0)
		if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/61/0" {
			t.Errorf("%v: replied %s", packet.Opcode(op), got)
		}
	}
}

func TestLateMemoryFaultRejectsUnacknowledgedRequests(t *testing.T) {
	_, b := connect(t, defaults)
	b.request(packet.WriteOnly, defaults.psn, 8)
	b.room = 0
	b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, 1), 8)
	b.qp.MemoryFault(&b.env, b.qp.respWriter, false)
	b.room = -1
	b.qp.Transmit(&b.env)
	if got, want := b.emitted(defaults.psn), "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/63/1"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestResponderRejectsReadsBeyondMaxDestRDAtomic(t *testing.T) {
	_, b := connect(t, defaults) // max_dest_rd_atomic 4
	b.room = 0                   // no room: the responses stay queued
	for i := range 5 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, i), 0, reth(sideBase, 8))
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	want := "READ_RESPONSE_ONLY+0/ack/1 READ_RESPONSE_ONLY+1/ack/2 READ_RESPONSE_ONLY+2/ack/3 READ_RESPONSE_ONLY+3/ack/4 ACKNOWLEDGE+4/61/4"
	if got := b.emitted(defaults.psn); got != want {
		t.Errorf("replies %s\nwant    %s", got, want)
	}
}

func TestRequestsOfABatchShareOneACK(t *testing.T) {
	_, b := connect(t, defaults)
	b.room = 0
	for i := range 3 {
		b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, i), 8)
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	if got, want := b.emitted(defaults.psn), "ACKNOWLEDGE+2/ack/3"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestReorderWithinBatchDrawsNoNAK(t *testing.T) {
	_, b := connect(t, defaults)
	b.room = 0
	for _, i := range []int{1, 0, 1} {
		b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, i), 8)
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	if got, want := b.emitted(defaults.psn), "ACKNOWLEDGE+1/ack/2"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}
