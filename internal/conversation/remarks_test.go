package conversation_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"softroce/internal/conversation"
	"softroce/packet"
)

func TestRemarksSayWhyPacketsWereSentAgain(t *testing.T) {
	const us = time.Microsecond
	at := func(d time.Duration, id uint16, s sent) sent { s.at, s.id = d, id; return s }
	send := func(psn uint32) sent { return sent{op: packet.SendOnly, psn: psn, payload: 8, ackReq: true} }
	read := func(psn uint32, length uint32) sent { return sent{op: packet.ReadRequest, psn: psn, length: length} }
	reply := func(syn packet.Syndrome, psn uint32) sent {
		return sent{op: packet.Acknowledge, psn: psn, aeth: packet.AETH{Syndrome: syn}}
	}
	ack := func(psn uint32) sent { return reply(packet.CreditsUnlimited, psn) }
	response := func(op packet.Opcode, psn uint32) sent {
		n := 1024
		if op == packet.ReadResponseLast {
			n = 512
		}
		return sent{op: op, psn: psn, payload: n}
	}
	const wraps = packet.PSNMask
	for _, c := range []struct {
		name    string
		packets []sent
		want    string // remarks, as NO:REMARK
	}{
		{"nothing is sent again", []sent{at(0, 1, send(5)), at(us, 1, ack(5)), at(2*us, 2, send(6)), at(3*us, 2, ack(6))}, ""},
		{"a NAK, the packets after it, and their ACK", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(0, 3, send(7)), at(20*us, 1, reply(packet.NAKSequence, 5)),
			at(30*us, 4, send(5)), at(31*us, 5, send(6)), at(32*us, 6, send(7)), at(33*us, 7, send(8)), at(50*us, 2, ack(7)), at(51*us, 3, ack(8)),
		}, "5:nak of 4 after 10µs 6:nak of 4 after 10µs 7:nak of 4 after 10µs 9:answers 5"},
		{"an RNR NAK", []sent{at(0, 1, send(5)), at(us, 1, reply(packet.SyndromeRNR|1, 5)), at(20*us, 2, send(5)), at(21*us, 2, ack(5))},
			"3:rnr of 2 after 19µs 4:answers 3"},
		{"a timeout, and another", []sent{at(0, 1, send(wraps)), at(0, 2, send(0)), at(time.Second, 3, send(wraps)), at(time.Second, 4, send(0)), at(3*time.Second, 5, send(wraps))},
			"3:timeout after 1s 4:timeout after 1s 5:timeout after 2s"},
		{"a NAK, and a timeout of what was sent after it", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(us, 1, reply(packet.NAKSequence, 5)), at(2*us, 3, send(5)), at(3*us, 4, send(6)), at(4*us, 5, send(7)),
			at(5*us, 2, ack(6)), at(time.Second+5*us, 6, send(7)), at(time.Second+6*us, 3, ack(7)),
		}, "4:nak of 3 after 1µs 5:nak of 3 after 1µs 7:answers 4 8:timeout after 1s 9:answers 8"},
		{"an answered NAK is no reason", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(us, 1, reply(packet.NAKSequence, 5)), at(2*us, 2, ack(6)), at(time.Second, 3, send(6)),
		}, "5:timeout after 999.998ms"},
		{"two NAKs that reach the requester late", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(0, 4, send(8)), at(0, 6, send(10)), at(us, 1, reply(packet.NAKSequence, 7)), at(2*us, 3, send(7)),
			at(3*us, 2, reply(packet.NAKSequence, 9)),
			at(4*us, 7, send(7)), at(5*us, 8, send(8)), at(6*us, 9, send(9)), at(7*us, 10, send(9)), at(8*us, 11, send(10)),
			at(time.Second, 12, send(9)),
		}, "6:late 8:nak of 5 after 3µs 9:nak of 5 after 3µs 10:nak of 5 after 3µs 11:nak of 7 after 4µs 12:nak of 7 after 4µs 13:timeout after 999.992ms"},
		{"two NAKs, of which the second is lost", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(0, 4, send(8)), at(us, 1, reply(packet.NAKSequence, 5)), at(2*us, 2, reply(packet.NAKSequence, 7)),
			at(3*us, 5, send(5)), at(4*us, 6, send(6)), at(5*us, 7, send(7)), at(time.Second, 8, send(6)),
		}, "6:nak of 4 after 2µs 7:nak of 4 after 2µs 8:nak of 4 after 2µs 9:timeout after 999.995ms"},
		{"an RNR NAK after a NAK that reaches the requester late", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(us, 1, reply(packet.NAKSequence, 5)), at(2*us, 2, reply(packet.SyndromeRNR|1, 6)),
			at(3*us, 3, send(5)), at(4*us, 4, send(6)), at(20*us, 5, send(6)),
		}, "5:nak of 3 after 2µs 6:nak of 3 after 2µs 7:rnr of 4 after 18µs"},
		{"a lost response of a READ", []sent{
			at(0, 1, read(5, 2560)), at(us, 1, response(packet.ReadResponseFirst, 5)), at(2*us, 3, response(packet.ReadResponseLast, 7)),
			at(3*us, 2, read(6, 1536)), at(4*us, 4, response(packet.ReadResponseFirst, 6)), at(5*us, 5, response(packet.ReadResponseLast, 7)),
		}, "4:response of 3 after 1µs 5:answers 4 6:answers 4"},
		{"an ACK that skips a response", []sent{
			at(0, 1, read(5, 100)), at(0, 2, send(6)), at(10*us, 1, ack(6)), at(11*us, 3, read(5, 100)), at(12*us, 4, send(6)),
		}, "4:response of 3 after 1µs 5:response of 3 after 1µs"},
		{"a copy, and a packet that the network delayed", []sent{
			at(0, 1, send(5)), at(0, 2, send(6)), at(0, 2, send(6)), at(0, 4, send(8)), at(0, 5, send(9)), at(0, 3, send(7)),
		}, "3:copy 6:late"},
		{"a response that was recorded before its request", []sent{
			at(0, 1, read(5, 100)), at(us, 1, response(packet.ReadResponseOnly, 5)), at(4*us, 2, response(packet.ReadResponseOnly, 6)), at(3*us, 2, read(6, 100)),
			at(5*us, 3, read(7, 100)), at(6*us, 3, response(packet.ReadResponseOnly, 7)),
		}, ""},
		{"another connection of the same queue pair numbers", []sent{at(0, 1, send(1<<22)), at(time.Second, 2, send(5)), at(time.Second, 3, send(6))}, ""},
	} {
		r := conversation.NewRemarks()
		var got []string
		for i, s := range c.packets {
			m := r.On(s.frame(t, i+1))
			if m == nil {
				continue
			}
			text := ""
			switch {
			case m.Again != nil && m.Again.Packet != 0:
				text = fmt.Sprintf("%s of %d after %v", m.Again.Cause, m.Again.Packet, m.Again.After)
			case m.Again != nil:
				text = fmt.Sprintf("%s after %v", m.Again.Cause, m.Again.After)
			case m.Answers != 0:
				text = fmt.Sprintf("answers %d", m.Answers)
			case m.Copy:
				text = "copy"
			case m.Late:
				text = "late"
			}
			got = append(got, fmt.Sprintf("%d:%s", i+1, text))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, s, c.want)
		}
	}
}

// Two queue pairs between the same hosts: a NAK is the reason for the one whose PSNs it is near.
func TestRemarksTellQueuePairsApart(t *testing.T) {
	send := func(psn uint32) sent { return sent{op: packet.SendOnly, psn: psn, payload: 8, ackReq: true} }
	nak := sent{op: packet.Acknowledge, psn: 1000, aeth: packet.AETH{Syndrome: packet.NAKSequence}, at: time.Millisecond}
	again := func(psn uint32) sent { s := send(psn); s.at = 3 * time.Millisecond; return s }
	r := conversation.NewRemarks()
	var got []string
	for i, p := range []struct {
		s   sent
		qpn uint32
	}{{send(1000), 17}, {send(5000), 27}, {nak, 18}, {again(1000), 17}, {again(5000), 27}} {
		q := between(t, p.s, p.qpn, 1)
		q.No = i + 1
		if m := r.On(q); m != nil {
			got = append(got, m.String())
		}
	}
	if s := strings.Join(got, " "); s != "[again: NAK in packet 3, 2ms before] [again: timeout after 3ms]" {
		t.Errorf("got %s", s)
	}
}
