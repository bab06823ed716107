package conversation_test

import (
	"net/netip"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// A sent is a packet of a connection between two hosts, as a test writes it. The responder's queue
// pair has the number 17, the requester's 18.
type sent struct {
	op      packet.Opcode
	psn     uint32
	id      uint16        // IPv4 Identification
	at      time.Duration // since the beginning of the capture
	payload int
	length  uint32 // of the RETH
	ackReq  bool
	aeth    packet.AETH
}

// frame returns the packet as the no-th of a capture.
func (s sent) frame(t testing.TB, no int) *capture.Packet {
	t.Helper()
	a := packet.Addressing{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 50000, ID: s.id, HopLimit: 64}
	h := packet.Header{BTH: packet.BTH{Opcode: s.op, PKey: packet.DefaultPKey, DestQP: 17, PSN: s.psn, AckReq: s.ackReq}, AETH: s.aeth}
	h.RETH.Length = s.length
	if !s.op.Info().Request {
		a.Src, a.Dst, h.DestQP = a.Dst, a.Src, 18
	}
	var tx packet.Tx
	tx.Set(&h, make([]byte, s.payload))
	b := packet.AppendFrame(nil, &a, &tx)
	p, err := capture.Parse(capture.Record{No: no, Time: time.Unix(1, 0).Add(s.at), LinkType: capture.Ethernet, Length: len(b), Data: b})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// streamOf returns the only stream with requests among the packets.
func streamOf(t testing.TB, packets ...sent) *conversation.Stream {
	t.Helper()
	var ps capture.Packets
	for i, s := range packets {
		ps = append(ps, s.frame(t, i+1))
	}
	c := conversation.New(ps, packet.RC)
	var all []*conversation.Stream
	for _, d := range c.Directions {
		streams, _ := c.Streams(d)
		all = append(all, streams...)
	}
	if len(all) != 1 {
		t.Fatalf("%d streams", len(all))
	}
	return all[0]
}

// acknowledge is an ACK of a PSN with an MSN.
func acknowledge(psn, msn uint32) sent {
	return sent{op: packet.Acknowledge, psn: psn, aeth: packet.AETH{Syndrome: packet.CreditsUnlimited, MSN: msn}}
}
