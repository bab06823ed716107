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

// reply passes an ACK, NAK or response to the requester of s.
func (s *side) reply(op uint8, psn uint32, syn packet.Syndrome, msn uint32, n int) {
	p := RxPacket{Header: packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(op), PKey: packet.DefaultPKey, DestQP: s.qp.QPN(), PSN: psn}, AETH: packet.AETH{Syndrome: syn, MSN: msn}}, Len: n}
	if n > 0 {
		p.Payload = [][]byte{make([]byte, n)}
	}
	s.deliver(&p)
}

const unlimited = packet.SyndromeACK | packet.CreditsUnlimited

// TestRequesterHandlesReplies has three SENDs of one packet and a READ of three packets
// outstanding.
func TestRequesterHandlesReplies(t *testing.T) {
	type rep struct {
		op  uint8
		psn int
		syn packet.Syndrome
		n   int
	}
	ack := func(psn int, s packet.Syndrome) rep { return rep{packet.Acknowledge, psn, s, 0} }
	for _, c := range []struct {
		name  string
		reps  []rep
		want  string // packets emitted after the first burst
		done  string
		drop  DropReason
		state ib.QPState
	}{
		{"ACK of the last PSN acknowledges all", []rep{ack(2, unlimited)}, "", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"old ACK", []rep{ack(2, unlimited), ack(0, unlimited)}, "", "1:0 2:0 3:0", DropGhostACK, ib.QPSRTS},
		{"ACK beyond what was sent", []rep{ack(6, unlimited)}, "", "", DropACKBeyondSent, ib.QPSRTS},
		{"sequence NAK acknowledges earlier PSNs", []rep{ack(1, packet.NAKSequence)}, "SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3", "1:0", NumDropReasons, ib.QPSRTS},
		{"a repeated sequence NAK is ignored", []rep{ack(1, packet.NAKSequence), ack(1, packet.NAKSequence)}, "SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3", "1:0", DropStaleResponse, ib.QPSRTS},
		{"READ response acknowledges earlier PSNs", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}}, "", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"gap in READ responses: the rest is requested again once", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}, {packet.ReadResponseLast, 5, unlimited, 952}, {packet.ReadResponseLast, 5, unlimited, 952}}, "READ_REQUEST+4", "1:0 2:0 3:0", DropStaleResponse, ib.QPSRTS},
		{"whole READ", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}, {packet.ReadResponseMid, 4, 0, 1024}, {packet.ReadResponseLast, 5, unlimited, 952}}, "", "1:0 2:0 3:0 4:0", NumDropReasons, ib.QPSRTS},
		{"READ response too short", []rep{{packet.ReadResponseFirst, 3, unlimited, 1000}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"READ response too long", []rep{{packet.ReadResponseOnly, 3, unlimited, 1024}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"ACK of a READ without its responses", []rep{ack(5, unlimited)}, "READ_REQUEST+3", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"response to a SEND", []rep{{packet.ReadResponseOnly, 1, unlimited, 8}}, "", "", DropUnmatchedResponse, ib.QPSRTS},
		{"atomic response to a READ", []rep{{packet.AtomicAcknowledge, 3, unlimited, 0}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"NAK invalid request", []rep{ack(1, packet.NAKInvalidRequest)}, "", "1:0 2:9 3:5 4:5", NumDropReasons, ib.QPSErr},
		{"NAK remote access", []rep{ack(0, packet.NAKRemoteAccess)}, "", "1:10 2:5 3:5 4:5", NumDropReasons, ib.QPSErr},
		{"NAK remote operational", []rep{ack(2, packet.NAKRemoteOperational)}, "", "1:0 2:0 3:11 4:5", NumDropReasons, ib.QPSErr},
		{"RNR NAK: wait", []rep{ack(1, packet.SyndromeRNR|12)}, "", "1:0", NumDropReasons, ib.QPSRTS},
		{"reserved syndrome", []rep{ack(1, 0x45)}, "", "", DropUnmatchedResponse, ib.QPSRTS},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := connect(t, defaults)
			for i := range 3 {
				a.post(SendWR{ID: uint64(i + 1), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 8)})
			}
			a.post(SendWR{ID: 4, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000), RemoteAddr: sideBase, RKey: b.region.RKey()})
			a.qp.Transmit(&a.env)
			if got, want := a.emitted(defaults.psn), "SEND_ONLY+0 SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3"; got != want {
				t.Fatalf("emitted %q, want %q", got, want)
			}
			for _, r := range c.reps {
				a.reply(r.op, packet.PSNAdd(defaults.psn, r.psn), r.syn, 0, r.n)
			}
			if got := a.emitted(defaults.psn); got != c.want {
				t.Errorf("emitted %q, want %q", got, c.want)
			}
			if got := statuses(a.done); got != c.done {
				t.Errorf("completions %s, want %s", got, c.done)
			}
			if c.drop != NumDropReasons && a.count.Drops[c.drop] == 0 {
				t.Errorf("drop %v was not counted: %v", c.drop, a.count.Drops)
			}
			if a.qp.State() != c.state {
				t.Errorf("state %v, want %v", a.qp.State(), c.state)
			}
		})
	}
}

func TestRNRNAKWaitsRetransmitsAndExhaustsRetries(t *testing.T) {
	o := defaults
	o.rnrRetry = 2
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	for i := range 3 {
		if got := a.emitted(o.psn); got != "SEND_ONLY+0" {
			t.Fatalf("transmission %d: %q", i+1, got)
		}
		a.reply(packet.Acknowledge, o.psn, packet.SyndromeRNR|12, 0, 0)
		if i == 2 {
			break
		}
		wait := a.qp.NextDeadline() - a.env.Now
		if wait != packet.RNRTimer(12) {
			t.Fatalf("RNR wait of %d ns", wait)
		}
		a.env.Now += wait - 1
		a.qp.Transmit(&a.env)
		if len(a.out) != 0 {
			t.Fatal("sent before the RNR timer ended")
		}
		a.env.Now++
		a.qp.Transmit(&a.env)
	}
	if got := statuses(a.done); got != fmt.Sprintf("1:%d", ib.WCRNRRetryExcErr) || a.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v", got, a.qp.State())
	}
}

func TestTimeoutRetransmitsRetryCountTimes(t *testing.T) {
	o := defaults
	o.retry = 4
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2000)})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	sent := 0
	for range 10 {
		a.qp.Transmit(&a.env)
		if a.emitted(o.psn) == "SEND_FIRST+0 SEND_LAST+1 SEND_ONLY+2" {
			sent++
		}
		d := a.qp.NextDeadline()
		if d == 0 {
			break
		}
		if want := ib.ACKTimeout(o.timeout); d-a.env.Now != want {
			t.Fatalf("timeout %d after %d ns, want %d", sent, d-a.env.Now, want)
		}
		a.env.Now = d
		a.qp.Expire(&a.env)
	}
	if got := statuses(a.done); sent != 5 || got != fmt.Sprintf("1:%d 2:%d", ib.WCRetryExcErr, ib.WCWRFlushErr) {
		t.Errorf("%d transmissions, %s", sent, got)
	}
}

func TestTimeoutDoublesForPeerThatHasReplied(t *testing.T) {
	a, _ := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2000)})
	a.qp.Transmit(&a.env)
	a.reply(packet.Acknowledge, defaults.psn, packet.SyndromeACK, 0, 0)
	for i, times := range []int64{1, 2, 4, 4} {
		a.qp.Transmit(&a.env)
		d := a.qp.NextDeadline()
		if want := times * ib.ACKTimeout(defaults.timeout); d-a.env.Now != want {
			t.Errorf("timeout %d after %d ns, want %d", i, d-a.env.Now, want)
		}
		a.env.Now = d
		a.qp.Expire(&a.env)
	}
}

// A peer that has replied to earlier work requests, and not to the oldest that is outstanding, is
// given up after little more than retry_cnt + 1 times the timeout, also if the requester still
// retransmits early because of earlier losses.
func TestSilentPeerIsGivenUpInTime(t *testing.T) {
	o := defaults
	o.mtu, o.timeout = 256, 18
	for retry := range uint8(8) {
		o.retry = retry
		for _, lossy := range []bool{false, true} {
			a, _ := connect(t, o)
			a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 1024), Flags: ib.SendSignaled})
			a.qp.Transmit(&a.env)
			if lossy && retry > 0 {
				a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 1), packet.NAKSequence, 0, 0)
				a.env.Now += 1e6
			}
			a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 3), packet.SyndromeACK, 1, 0)
			a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 1024)})
			posted := a.env.Now
			for a.qp.State() == ib.QPSRTS {
				a.qp.Transmit(&a.env)
				a.env.Now = a.qp.NextDeadline()
				a.qp.Expire(&a.env)
			}
			took, least := a.env.Now-posted, int64(retry+1)*ib.ACKTimeout(o.timeout)
			if got := statuses(a.done); took < least || took > least*5/4 || got != fmt.Sprintf("1:0 2:%d", ib.WCRetryExcErr) {
				t.Errorf("retry_cnt %d, losses %v: %s after %d ns, want %d", retry, lossy, got, took, least)
			}
			if early := a.count.AdaptiveRetransmissions; lossy && retry > 0 && early == 0 {
				t.Error("nothing was retransmitted early")
			}
		}
	}
}

// TestOldResponsesAfterTimeoutAreNoImpliedNAK loses the first packet of a READ response, so that
// the READ is retransmitted at the timeout. The rest of the first response, which arrives late,
// neither retransmits again nor uses a retry.
func TestOldResponsesAfterTimeoutAreNoImpliedNAK(t *testing.T) {
	o := defaults
	o.retry = 1
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	a.env.Now = a.qp.NextDeadline()
	a.qp.Expire(&a.env)
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(o.psn), "READ_REQUEST+0 READ_REQUEST+0"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseMid, o.psn+1, 0, 0, 1024)
	a.reply(packet.ReadResponseLast, o.psn+2, unlimited, 1, 952)
	if got := a.emitted(o.psn); got != "" || a.qp.State() != ib.QPSRTS {
		t.Errorf("then emitted %q, %v, %s", got, a.qp.State(), statuses(a.done))
	}
	a.reply(packet.ReadResponseFirst, o.psn, unlimited, 1, 1024)
	a.reply(packet.ReadResponseMid, o.psn+1, 0, 0, 1024)
	a.reply(packet.ReadResponseLast, o.psn+2, unlimited, 1, 952)
	if got := statuses(a.done); got != "1:0" {
		t.Errorf("completions %s", got)
	}
}

// TestAnyReplyResetsTimeoutBackoff checks that the next timeout has its initial length after any
// reply.
func TestAnyReplyResetsTimeoutBackoff(t *testing.T) {
	for _, answer := range []packet.Syndrome{packet.SyndromeACK, packet.SyndromeRNR | 12} {
		a, _ := connect(t, defaults)
		a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		for range 3 {
			a.qp.Transmit(&a.env)
			a.env.Now = a.qp.NextDeadline()
			a.qp.Expire(&a.env)
		}
		a.qp.Transmit(&a.env)
		a.reply(packet.Acknowledge, defaults.psn, answer, 0, 0)
		if answer != packet.SyndromeACK {
			a.env.Now = a.qp.NextDeadline()
			a.qp.Transmit(&a.env)
		}
		if wait := a.qp.NextDeadline() - a.env.Now; wait != ib.ACKTimeout(defaults.timeout) {
			t.Errorf("%#x: the next timeout is after %d ns, want %d", answer, wait, ib.ACKTimeout(defaults.timeout))
		}
	}
}

func TestRNRNAKRestoresTransportRetries(t *testing.T) {
	o := defaults
	o.retry = 1
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	for range 5 { // each time the first RNR NAK is lost
		a.qp.Transmit(&a.env)
		a.env.Now = a.qp.NextDeadline()
		a.qp.Expire(&a.env)
		a.qp.Transmit(&a.env)
		a.reply(packet.Acknowledge, o.psn, packet.SyndromeRNR|12, 0, 0)
		a.env.Now = a.qp.NextDeadline()
	}
	if a.qp.State() != ib.QPSRTS {
		t.Errorf("failed with %s", statuses(a.done))
	}
}

func TestFenceWaitsForReads(t *testing.T) {
	a, b := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendFence, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+0 SEND_ONLY+1"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseOnly, defaults.psn, unlimited, 1, 8)
	if got, want := a.emitted(defaults.psn), "SEND_ONLY+2"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
}

func TestRequesterRespectsMaxRDAtomic(t *testing.T) {
	a, b := connect(t, defaults) // 4
	for i := range 6 {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	}
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+0 READ_REQUEST+1 READ_REQUEST+2 READ_REQUEST+3"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseOnly, defaults.psn, unlimited, 1, 8)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+4"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
}

func TestRequesterSendsOneMessageAtATimeWithoutCredits(t *testing.T) {
	a, _ := connect(t, defaults)
	for i := range 4 {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	}
	a.room = 1
	a.qp.Transmit(&a.env)
	a.room = -1
	a.emitted(defaults.psn)
	for i := range 3 {
		a.reply(packet.Acknowledge, packet.PSNAdd(defaults.psn, i), packet.SyndromeACK, uint32(i+1), 0)
		if got, want := a.emitted(defaults.psn), fmt.Sprintf("SEND_ONLY%+d", i+1); got != want {
			t.Fatalf("with no credits: %q, want %q", got, want)
		}
	}
}

func TestLocalProtectionErrorCompletesInOrder(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 100)
	b.recv(2, 0, 100)
	bad := a.sge(0, 8)
	bad[0].LKey ^= 1
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 8)})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: bad})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:4 3:5" || a.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v", got, a.qp.State())
	}
	if got := statuses(b.done); got != "1:0" {
		t.Errorf("responder completed %s", got)
	}
}

func TestModifyFollowsRCStateMachine(t *testing.T) {
	q, _ := New(Config{Service: packet.RC, SendDepth: 1})
	e := &Env{Now: 1, Sink: newSide(t, 1, 8)}
	full := ib.QPAttr{PathMTU: 1024, PKey: 1}
	for _, c := range []struct {
		to   ib.QPState
		mask ib.QPAttrMask
		ok   bool
	}{
		{ib.QPSRTR, ib.QPMaskState, false},
		{ib.QPSErr, ib.QPMaskState, false},
		{ib.QPSInit, ib.QPMaskState, false},
		{ib.QPSInit, ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess | ib.QPMaskQKey, false},
		{ib.QPSInit, ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, true},
		{ib.QPSRTS, ib.QPMaskState, false},
		{ib.QPSRTR, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic, false},
		{ib.QPSRTR, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer, true},
		{ib.QPSRTS, ib.QPMaskState | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic, true},
		{ib.QPSRTS, ib.QPMaskState | ib.QPMaskPathMTU, false},
		{ib.QPSSQD, ib.QPMaskState | ib.QPMaskEnSQDNotify, true},
		{ib.QPSRTS, ib.QPMaskState, true},
		{ib.QPSErr, ib.QPMaskState, true},
		{ib.QPSRTS, ib.QPMaskState, false},
		{ib.QPSReset, ib.QPMaskState, true},
	} {
		full.State = c.to
		from := q.State()
		err := q.Modify(e, &full, c.mask)
		if (err == nil) != c.ok {
			t.Errorf("%v to %v with %#x: %v", from, c.to, uint32(c.mask), err)
		}
		if err != nil && q.State() != from {
			t.Errorf("a rejected Modify changed the state")
		}
	}
}
