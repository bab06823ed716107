package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// The opcodes of requests and of replies in the text of exchange.
var (
	requestOpcodes = map[string]packet.Opcode{"SEND": packet.SendOnly, "WRITE": packet.WriteOnly, "READ": packet.ReadRequest, "ADD": packet.FetchAdd}
	replyOpcodes   = map[string]packet.Opcode{"READ": packet.ReadResponseOnly, "ADD": packet.AtomicAcknowledge,
		"ACK": packet.Acknowledge, "NAK": packet.Acknowledge, "RNR": packet.Acknowledge}
	nakSyndromes = map[string]packet.Syndrome{"NAK": packet.NAKSequence, "RNR": packet.SyndromeRNR | 12}
)

// exchange builds a capture of small messages of one packet. Its lines are requests "> OPCODE PSN",
// and replies "< OPCODE PSN/MSN", where OPCODE is that of the request that it answers, ACK, NAK or
// RNR. The first PSN is 0. Each end numbers its packets.
func exchange(t *testing.T, text string) (ps capture.Packets) {
	t.Helper()
	ids := map[string]uint16{} // by direction
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var dir, op string
		var psn, msn uint32
		if n, _ := fmt.Sscanf(strings.ReplaceAll(line, "/", " "), "%s %s %d %d", &dir, &op, &psn, &msn); n < 3 {
			t.Fatalf("line %q", line)
		}
		back := dir == "<"
		h := packet.Header{BTH: packet.BTH{DestQP: 17, PSN: psn, AckReq: !back}, AETH: packet.AETH{Syndrome: packet.CreditsUnlimited, MSN: msn},
			RETH: packet.RETH{VA: 0x1000, RKey: 1}, Atomic: packet.AtomicETH{VA: 0x1000 + 8*uint64(psn), RKey: 1, SwapAdd: 1}}
		known := false
		if back {
			h.DestQP = 18
			h.Opcode, known = replyOpcodes[op]
		} else {
			h.Opcode, known = requestOpcodes[op]
		}
		if !known {
			t.Fatalf("line %q", line)
		}
		if nak, ok := nakSyndromes[op]; ok {
			h.AETH.Syndrome = nak
		}
		ids[dir]++
		ps = append(ps, sentPacket(t, i+1, back, ids[dir], h, 0))
	}
	return ps
}

// losses are the beginning of a capture on a network that loses packets.
const losses = `
> WRITE 0
< ACK 0/1
> WRITE 1
> WRITE 2
< NAK 1/1
> WRITE 1
> WRITE 2
< ACK 2/3
> WRITE 3
> WRITE 4
< NAK 3/3
> WRITE 3
> WRITE 4
< ACK 4/5
`

// lines is a capture in one line.
func lines(text string) string { return losses + strings.ReplaceAll(text, ", ", "\n") }

// What a responder of softroce replied on a fabric that reorders packets, reduced to the least that
// shows each case.
func TestReorderingAfterCaptureIsExplained(t *testing.T) {
	for _, c := range []struct{ name, packets string }{
		{"a NAK crosses the retransmission of what arrived late",
			"> ADD 5, > ADD 6, > READ 7, > READ 8, > ADD 9, > WRITE 10, < ADD 5/6, < ADD 6/7, < NAK 7/7, " +
				"> ADD 5, > ADD 6, > READ 7, > READ 8, > ADD 9, > WRITE 10, < READ 7/8, > ADD 6, > READ 7, > READ 8, > ADD 9, > WRITE 10, " +
				"< ADD 5/8, < ADD 6/8, < READ 7/8, < READ 8/9, < NAK 9/9, > ADD 9, > WRITE 10, " +
				"< ADD 6/9, < READ 7/9, < READ 8/10, < ADD 9/10, < ACK 10/11, < ADD 9/11, < ACK 10/11"},
		{"a NAK for the last PSN crosses its retransmission",
			"> ADD 5, > READ 6, > ADD 7, > WRITE 8, < READ 6/7, > ADD 5, > READ 6, > ADD 7, > WRITE 8, < ADD 7/8, < NAK 8/8, " +
				"< ADD 5/8, < READ 6/8, < ADD 7/9, < ACK 8/9"},
		{"a retransmission overtakes the last request",
			"> ADD 5, > ADD 6, > WRITE 7, < ADD 5/6, < ADD 6/7, > ADD 5, > ADD 6, < ADD 5/7, < ADD 6/8, < ACK 7/8"},
		{"a retransmission overtakes a request that is not sent again",
			"> WRITE 5, > WRITE 6, > WRITE 7, < NAK 5/5, > WRITE 5, > WRITE 6, < ACK 7/8, > WRITE 8, < ACK 8/9"},
		{"the packet before a late one was lost before the point of capture",
			"> WRITE 6, > WRITE 5, < ACK 6/7, > WRITE 7, < ACK 7/8"},
		{"a later request overtakes the retransmission of an atomic whose response was lost",
			"> ADD 5, > ADD 5, > WRITE 6, < ADD 5/7, < ACK 6/7"},
		{"a later request overtakes the retransmission of an atomic, and its ACK is lost",
			"> ADD 5, < ADD 5/6, > ADD 5, > WRITE 6, < ADD 5/7, > WRITE 6, < ACK 6/7, > WRITE 7, < ACK 7/8"},
		{"the cause of a NAK arrives after retransmissions",
			"> WRITE 5, > WRITE 6, > ADD 7, > WRITE 8, > WRITE 9, > WRITE 10, < NAK 5/5, > WRITE 5, > WRITE 6, > ADD 7, > WRITE 8, < NAK 6/6, " +
				"> WRITE 6, > ADD 7, > WRITE 8, < ADD 7/8, < NAK 9/9, > WRITE 9, > WRITE 10, < ADD 7/9, < ACK 8/9, < ACK 10/11"},
		{"the cause of a NAK arrives after another packet caused the NAK before",
			"> WRITE 5, > WRITE 6, > WRITE 8, < NAK 5/5, > WRITE 5, > WRITE 6, < NAK 7/7, > WRITE 7, > WRITE 8, < ACK 8/9"},
		{"one of two transmissions finds no receive, and the other one does",
			"> SEND 5, > SEND 5, < RNR 5/5, < ACK 5/6, > WRITE 6, < ACK 6/7"},
		{"a NAK and an RNR NAK, and no transmission after them",
			"> SEND 5, > WRITE 6, < NAK 5/5, > SEND 5, > WRITE 6, < RNR 5/5, < ACK 5/6, > WRITE 6, < ACK 6/7"},
		{"a retransmission after an RNR NAK overtakes a request that is not sent again",
			"> SEND 5, > ADD 6, > READ 7, > WRITE 8, > WRITE 9, > WRITE 10, < RNR 5/5, > SEND 5, > ADD 6, > READ 7, > WRITE 9, > WRITE 10, " +
				"< ADD 6/7, < READ 7/8, < NAK 8/8, > WRITE 8, > WRITE 9, < ACK 10/11, > WRITE 11, < ACK 11/12"},
		{"READs are answered in another order after an RNR NAK",
			strings.Repeat("> SEND 5, > READ 6, > READ 7, > WRITE 8, > READ 9, > READ 10, < RNR 5/5, ", 2) +
				"> SEND 5, > READ 6, > READ 7, > WRITE 8, > READ 9, > READ 10, < READ 6/7, < READ 7/8, < READ 9/10, < READ 10/11, " +
				"> READ 6, > READ 7, > WRITE 8, > READ 9, > READ 10, < READ 9/11, < READ 10/11, > READ 7, > WRITE 8, > READ 9, > READ 10, " +
				"< READ 6/11, < READ 7/11, < READ 9/11, < READ 10/11, > READ 9, > READ 10, < READ 9/11, < READ 10/11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := packets(t, exchange(t, lines(c.packets)), replay.Options{}); r.Differences() != 0 || r.Compared == 0 {
				t.Errorf("%v", r)
			}
		})
	}
}

// What such a network does hides no wrong reply.
func TestReorderingHidesNoWrongReply(t *testing.T) {
	for _, c := range []struct{ name, packets string }{
		{"a NAK for a request that was acknowledged",
			"> ADD 5, > READ 6, > WRITE 7, < ADD 5/6, < READ 6/7, > ADD 5, > READ 6, > WRITE 7, < NAK 6/7, < ADD 5/8, < READ 6/8, < ACK 7/8"},
		{"a second NAK for a gap",
			"> WRITE 5, > WRITE 6, > WRITE 7, < NAK 5/5, < NAK 5/5, > WRITE 5, > WRITE 6, > WRITE 7, < ACK 7/8"},
		{"a repeated response does not count what was acknowledged",
			"> ADD 5, > ADD 6, > WRITE 7, < ADD 5/6, < ADD 6/7, < ACK 7/8, > ADD 5, > ADD 6, < ADD 5/7, < ADD 6/8, < ACK 7/8"},
		{"a repeated response counts less than the one before it",
			"> ADD 5, > ADD 6, > WRITE 7, < ADD 5/6, < ADD 6/7, > ADD 5, > ADD 6, < ADD 5/8, < ADD 6/8, > ADD 5, > ADD 6, < ADD 5/7, < ADD 6/8, < ACK 7/8"},
		{"packets behind a gap are kept",
			"> WRITE 5, > WRITE 6, > WRITE 7, < NAK 5/5, > WRITE 5, < ACK 7/8, > WRITE 8, < ACK 8/9"},
		{"a SEND that found no receive is accepted",
			"> SEND 5, < RNR 5/5, < ACK 5/6, > WRITE 6, < ACK 6/7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := packets(t, exchange(t, lines(c.packets)), replay.Options{}); r.Differences() == 0 {
				t.Errorf("%v", r)
			}
		})
	}
}
