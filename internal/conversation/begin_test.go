package conversation_test

import (
	"slices"
	"testing"
	"time"

	"softroce/packet"
)

// A stream that begins inside a retransmission has readings without its first messages; one that
// begins with the queue pair, or with new requests, has none.
func TestLaterBeginningsNeedASign(t *testing.T) {
	send := func(psn uint32, at time.Duration) sent {
		return sent{op: packet.SendOnly, psn: psn, at: at, id: uint16(at), ackReq: true}
	}
	ack := func(psn, msn uint32, at time.Duration) sent {
		a := acknowledge(psn, msn)
		a.at, a.id = at, uint16(at)
		return a
	}
	for _, c := range []struct {
		name    string
		packets []sent
		want    []uint32 // first PSNs of the readings
	}{
		{"new requests", []sent{send(5, 1), ack(5, 101, 2), send(6, 3), ack(6, 102, 4), send(7, 5), ack(7, 103, 6)}, nil},
		{"an ACK of what the capture lacks", []sent{send(5, 1), ack(6, 102, 2), send(6, 3), ack(6, 102, 4), send(7, 5), ack(7, 103, 6)}, []uint32{6, 7, 8}},
		{"the requester goes back below its first PSN", []sent{send(9, 1), send(5, 2), ack(9, 105, 3), send(6, 4), ack(9, 105, 5), send(7, 6), ack(9, 105, 7)}, []uint32{6, 7, 8, 10}},
		{"the beginning of the queue pair", []sent{send(5, 1), ack(6, 2, 2), send(6, 3), ack(6, 2, 4), send(7, 5), ack(7, 3, 6)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := streamOf(t, c.packets...)
			var got []uint32
			for l := range s.Later() {
				got = append(got, uint32(l.FirstSeq)&packet.PSNMask)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("first PSNs %v, want %v", got, c.want)
			}
		})
	}
}
