package conversation_test

import (
	"fmt"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// messages describes the messages of a stream: for each its kind, first PSN and number of PSNs,
// with * if packets are missing and ! if one cannot follow the one before it.
func messages(s *conversation.Stream) string {
	var out []string
	for _, m := range s.Messages {
		kind := map[packet.Kind]string{packet.KindNone: "?", packet.KindSend: "SEND", packet.KindWrite: "WRITE", packet.KindRead: "READ"}[m.Kind]
		text := fmt.Sprintf("%s %d+%d", kind, conversation.Wrap(m.First), m.NumPSNs)
		if m.Kind != packet.KindRead && int64(len(m.Packets)) != m.NumPSNs {
			text += "*"
		}
		if m.Broken != nil {
			text += "!"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func TestPacketsAreAssembledToMessages(t *testing.T) {
	first := sent{op: packet.SendFirst, psn: 10, payload: 256}
	middle := sent{op: packet.SendMiddle, psn: 11, payload: 256}
	last := sent{op: packet.SendLast, psn: 12, payload: 4}
	only := func(psn uint32) sent { return sent{op: packet.SendOnly, psn: psn, payload: 4} }
	read := func(psn, length uint32) sent { return sent{op: packet.ReadRequest, psn: psn, length: length} }
	write := sent{op: packet.WriteFirst, psn: 10, payload: 256, length: 700}
	for _, c := range []struct {
		name    string
		packets []sent
		want    string
	}{
		{"one of three packets", []sent{first, middle, last}, "SEND 10+3"},
		{"two", []sent{first, middle, last, only(13)}, "SEND 10+3, SEND 13+1"},
		{"packets out of order", []sent{first, last, middle, only(13)}, "SEND 10+3, SEND 13+1"},
		{"a retransmission", []sent{first, middle, last, first, middle, last}, "SEND 10+3"},
		{"the last packet is missing", []sent{first, middle}, "SEND 10+2"},
		{"a READ of three PSNs", []sent{first, middle, last, read(13, 700), only(16)}, "SEND 10+3, READ 13+3, SEND 16+1"},
		{"a READ retransmitted from its middle", []sent{first, middle, last, read(13, 700), read(14, 444), only(16)}, "SEND 10+3, READ 13+3, SEND 16+1"},
		{"a WRITE whose last packets are missing", []sent{write, only(13)}, "WRITE 10+3*, SEND 13+1"},
		{"packets missing inside", []sent{first, last, only(13)}, "SEND 10+3*, SEND 13+1"},
		{"packets missing between messages", []sent{first, middle, last, only(20)}, "SEND 10+3, ? 13+7*, SEND 20+1"},
		{"the first packet is missing", []sent{only(1), first, middle, last, sent{op: packet.SendMiddle, psn: 20, payload: 256}, sent{op: packet.SendLast, psn: 21}},
			"SEND 1+1, ? 2+8*, SEND 10+3, ? 13+9*"},
		{"the last packet is missing between others", []sent{first, middle, only(20)}, "? 10+10*, SEND 20+1"},
		{"the first packet cannot be captured", []sent{middle, last, only(13)}, "SEND 13+1"},
		{"a message inside another", []sent{first, only(11), only(12)}, "SEND 10+1!, SEND 11+1, SEND 12+1"},
		{"a MIDDLE after an ONLY", []sent{first, middle, last, sent{op: packet.SendMiddle, psn: 13, payload: 256}}, "SEND 10+3, ? 13+1!"},
	} {
		s := streamOf(t, c.packets...)
		if got := messages(s); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestMessagesAreFoundByPSN(t *testing.T) {
	s := streamOf(t, sent{op: packet.SendFirst, psn: 10, payload: 256}, sent{op: packet.SendLast, psn: 11, payload: 4},
		sent{op: packet.ReadRequest, psn: 12, length: 700}, sent{op: packet.SendOnly, psn: 15})
	for _, c := range []struct {
		psn     int64
		message int // its index, -1: none
		through uint32
	}{{9, -1, 0}, {10, 0, 0}, {11, 0, 1}, {12, 1, 1}, {13, 1, 1}, {14, 1, 2}, {15, 2, 3}, {16, -1, 3}} {
		seq := conversation.Origin + c.psn
		var want *conversation.Message
		if c.message >= 0 {
			want = s.Messages[c.message]
		}
		if got := s.MessageAt(seq); got != want {
			t.Errorf("PSN %d belongs to %v, want %v", c.psn, got, want)
		}
		if got := s.MessagesThrough(seq); got != c.through {
			t.Errorf("%d messages end at PSN %d or before, want %d", got, c.psn, c.through)
		}
	}
}

// The first PSN and MSN that a capture can be judged from, wherever it begins.
func TestBeginningOfCaptureIsInferred(t *testing.T) {
	only := func(psn uint32) sent { return sent{op: packet.SendOnly, psn: psn, ackReq: true} }
	nak := func(psn, msn uint32) sent {
		return sent{op: packet.Acknowledge, psn: psn, aeth: packet.AETH{Syndrome: packet.NAKSequence, MSN: msn}}
	}
	for _, c := range []struct {
		name    string
		packets []sent
		psn     uint32
		msn     uint32
	}{
		{"with the connection", []sent{only(10), acknowledge(10, 1), only(11), acknowledge(11, 2)}, 10, 0},
		{"in the middle of a connection", []sent{only(10), acknowledge(10, 8), only(11), acknowledge(11, 9)}, 10, 7},
		{"one reply with a wrong MSN", []sent{only(10), acknowledge(10, 1), only(11), acknowledge(11, 9), only(12), acknowledge(12, 3)}, 10, 0},
		{"with a packet that was overtaken", []sent{only(11), only(10), acknowledge(11, 2)}, 10, 0},
		{"with a NAK for a packet before it", []sent{only(11), nak(10, 0), only(10), only(11), acknowledge(11, 2)}, 10, 0},
		{"with a NAK that wraps", []sent{only(0), nak(0xffffff, 0), only(0xffffff), only(0), acknowledge(0, 2)}, 0xffffff, 0},
		{"with a NAK as the only reply", []sent{only(10), only(11), nak(11, 8)}, 10, 7},
		{"inside a message", []sent{{op: packet.SendLast, psn: 10}, only(11), acknowledge(11, 5), only(12), acknowledge(12, 6)}, 11, 4},
		{"with a retransmission only", []sent{only(10), acknowledge(11, 20), acknowledge(11, 20)}, 12, 20},
	} {
		s := streamOf(t, c.packets...)
		if conversation.Wrap(s.FirstSeq) != c.psn || s.FirstMSN != c.msn {
			t.Errorf("%s: PSN %#x, MSN %d; want %#x, %d", c.name, conversation.Wrap(s.FirstSeq), s.FirstMSN, c.psn, c.msn)
		}
	}
}

// A single reply that contradicts the beginning of a connection, which the capture shows, is wrong.
func TestMSNStartsAtZeroAfterSetup(t *testing.T) {
	connection := sent{op: packet.Opcode(packet.UD) | packet.SendOnly, psn: 1}
	for _, c := range []struct {
		name   string
		before []sent
		others int // frames of other protocols
		msn    uint32
	}{
		{"nothing before", nil, 0, 7},
		{"a datagram before, as of the connection manager", []sent{connection}, 0, 0},
		{"another protocol before", nil, 3, 0},
	} {
		var ps capture.Packets
		for i, s := range append(c.before, sent{op: packet.SendOnly, psn: 10, ackReq: true}, acknowledge(10, 8)) {
			ps = append(ps, s.frame(t, i+1+c.others))
		}
		captured := conversation.New(ps, packet.RC)
		streams, _ := captured.Streams(captured.Directions[0])
		if len(streams) != 1 || streams[0].FirstMSN != c.msn {
			t.Errorf("%s: MSN %d, want %d", c.name, streams[0].FirstMSN, c.msn)
		}
	}
}

func TestKnownBeginningIsNotInferred(t *testing.T) {
	request := sent{op: packet.SendOnly, psn: 11}.frame(t, 1)
	reply := sent{op: packet.Acknowledge, psn: 12, aeth: packet.AETH{Syndrome: packet.NAKRemoteAccess, MSN: 9}}.frame(t, 2)
	ps := capture.Packets{request, reply}
	s := conversation.NewKnown([]*conversation.Transmission{conversation.NewTransmission(request, 0)},
		[]*conversation.Transmission{conversation.NewTransmission(reply, 1)}, ps, 2048, 10)
	if s.PathMTU != 2048 || conversation.Wrap(s.FirstSeq) != 10 || s.FirstMSN != 0 || !s.Refused || s.LastIndex != 1 {
		t.Errorf("path MTU %d, PSN %d, MSN %d, refused %v, last packet of the responder %d", s.PathMTU, conversation.Wrap(s.FirstSeq), s.FirstMSN, s.Refused, s.LastIndex)
	}
	if got := messages(s); got != "? 10+1*, SEND 11+1" {
		t.Error(got)
	}
}

func TestRetransmissionsAreLinked(t *testing.T) {
	s := streamOf(t, sent{op: packet.SendOnly, psn: 10}, sent{op: packet.SendOnly, psn: 11, at: 1}, sent{op: packet.SendOnly, psn: 11, at: 2},
		sent{op: packet.SendOnly, psn: 10, at: 20_000}, sent{op: packet.SendOnly, psn: 11, at: 20_001})
	want := []int{4, 5, 0, 0, 0} // the third is a copy of the second
	if len(s.Requests) != len(want) {
		t.Fatalf("%d requests, want %d", len(s.Requests), len(want))
	}
	for i, e := range s.Requests {
		next := 0
		if e.Next != nil {
			next = e.Next.No
		}
		if next != want[i] {
			t.Errorf("packet %d is retransmitted in packet %d, want %d", e.No, next, want[i])
		}
	}
}
