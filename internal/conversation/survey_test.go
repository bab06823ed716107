package conversation_test

import (
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// between returns a packet to a queue pair, from one host to the other, with a UDP source port.
func between(t *testing.T, s sent, qpn uint32, port uint16) *capture.Packet {
	t.Helper()
	p := s.frame(t, 1)
	a, h := p.Addressing, p.Header
	a.SrcPort, h.DestQP = port, qpn
	var tx packet.Tx
	tx.Set(&h, p.Payload)
	r := p.Record
	r.Data = packet.AppendFrame(nil, &a, &tx)
	q, err := capture.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Requests go to queue pairs 17 and 27 of one host, replies to 18 and 28 of the other.
func TestRepliesPairFlows(t *testing.T) {
	send := func(psn uint32) sent { return sent{op: packet.SendOnly, psn: psn, ackReq: true} }
	read := sent{op: packet.ReadRequest, psn: 5, length: 4}
	response := sent{op: packet.ReadResponseOnly, psn: 5, payload: 4}
	type to struct {
		s    sent
		qpn  uint32
		port uint16
	}
	for _, c := range []struct {
		name    string
		packets []to
		peer    map[uint32]uint32 // queue pair numbers, 0: not known
	}{
		{"an ACK has the PSN of a request", []to{{send(5), 17, 1}, {send(900), 27, 1}, {acknowledge(5, 1), 18, 1}, {acknowledge(900, 1), 28, 1}}, map[uint32]uint32{17: 18, 27: 28}},
		{"a response fits a READ better than an ACK fits a SEND", []to{{read, 17, 1}, {send(5), 27, 1}, {acknowledge(5, 1), 28, 1}, {response, 18, 1}}, map[uint32]uint32{17: 18, 27: 28}},
		{"one UDP source port in both directions", []to{{send(5), 17, 1}, {send(5), 27, 2}, {acknowledge(5, 1), 28, 2}, {acknowledge(5, 1), 18, 1}}, map[uint32]uint32{17: 18, 27: 28}},
		{"no PSN in common, each alone with its port", []to{{send(5), 17, 1}, {acknowledge(900, 1), 18, 1}}, map[uint32]uint32{17: 18}},
		{"no PSN in common, two with one port", []to{{send(5), 17, 1}, {send(5), 27, 1}, {acknowledge(900, 1), 18, 1}}, map[uint32]uint32{17: 0, 27: 0}},
		{"a response to a queue pair that sent no READ", []to{{send(5), 17, 1}, {acknowledge(5, 1), 18, 2}, {response, 18, 2}}, map[uint32]uint32{17: 0}},
		{"a response does not answer a SEND", []to{{send(5), 17, 1}, {response, 18, 2}}, map[uint32]uint32{17: 0}},
	} {
		s := conversation.NewSurvey()
		for _, p := range c.packets {
			s.Add(between(t, p.s, p.qpn, p.port))
		}
		s.Pair()
		found := 0
		for _, f := range s.Flows() {
			want, listed := c.peer[f.QPN]
			if listed {
				found++
			}
			var got uint32
			if f.Peer != nil {
				got = f.Peer.QPN
			}
			if listed && got != want {
				t.Errorf("%s: the peer of QP %d is QP %d, want %d", c.name, f.QPN, got, want)
			}
		}
		if found != len(c.peer) {
			t.Errorf("%s: %d flows, want %d", c.name, found, len(c.peer))
		}
	}
}

// All connections start at PSN 0. Connection i sends requests to queue pair 100+2i and gets replies
// at the next one.
func TestRepliesPairFlowsWithEqualPSNs(t *testing.T) {
	const connections, messages = 24, 30
	for _, atOnce := range []uint32{1, 4} {
		s := conversation.NewSurvey()
		for first := uint32(0); first < connections; first += atOnce {
			for psn := range uint32(messages) {
				for i := range atOnce {
					s.Add(between(t, sent{op: packet.SendOnly, psn: psn + i, ackReq: true}, 100+2*(first+i), 1))
					s.Add(between(t, acknowledge(psn+i, psn+1), 101+2*(first+i), 1))
				}
			}
		}
		s.Pair()
		if len(s.Flows()) != 2*connections {
			t.Fatalf("%d flows", len(s.Flows()))
		}
		for _, f := range s.Flows() {
			if f.Peer == nil || f.Peer.QPN != f.QPN^1 {
				t.Errorf("%d at a time: the peer of %v is %v", atOnce, f, f.Peer)
			}
		}
	}
}

func TestSurveyIgnoresPacketsWithoutFlow(t *testing.T) {
	damaged := sent{op: packet.SendOnly, psn: 5, payload: 4}.frame(t, 1)
	damaged.Data[len(damaged.Data)-1] ^= 1
	damaged, err := capture.Parse(damaged.Record)
	if err != nil {
		t.Fatal(err)
	}
	datagram := sent{op: packet.Opcode(packet.UD) | packet.SendOnly, psn: 5}.frame(t, 2)
	s := conversation.NewSurvey()
	for _, p := range []*capture.Packet{damaged, datagram} {
		if s.Add(p); len(s.Flows()) != 0 || s.Flow(p) != nil {
			t.Errorf("packet %d has a flow", p.No)
		}
	}
	for qpn := range uint32(conversation.MaxFlows + 1) {
		p := between(t, sent{op: packet.SendOnly}, qpn+2, 1)
		if s.Add(p); (s.Flow(p) != nil) != (qpn < conversation.MaxFlows) {
			t.Fatalf("flow %d of %d is in the survey: %v", qpn+1, conversation.MaxFlows, s.Flow(p) != nil)
		}
	}
}

// A queue pair number that is used again gets a stream of its own.
func TestReusedQueuePairNumberBeginsStream(t *testing.T) {
	var ps capture.Packets
	const again = 7 + conversation.MaxPSNStep
	for _, s := range []sent{{op: packet.SendOnly, psn: 5}, acknowledge(5, 1), {op: packet.SendOnly, psn: 6}, {op: packet.SendOnly, psn: again}, acknowledge(again, 1)} {
		ps = append(ps, s.frame(t, len(ps)+1))
	}
	c := conversation.New(ps, packet.RC)
	streams, unrequested := c.Streams(c.Directions[0])
	if len(streams) != 2 || len(unrequested) != 0 {
		t.Fatalf("%d streams, %d replies without a request", len(streams), len(unrequested))
	}
	for i, want := range []struct{ requests, replies int }{{2, 1}, {1, 1}} {
		if s := streams[i]; len(s.Requests) != want.requests || len(s.Replies) != want.replies {
			t.Errorf("stream %d: %d requests, %d replies; want %v", i, len(s.Requests), len(s.Replies), want)
		}
	}
}

func TestRepliesBeforeRequestsBelongToNoStream(t *testing.T) {
	ps := capture.Packets{acknowledge(5, 1).frame(t, 1), sent{op: packet.SendOnly, psn: 5}.frame(t, 2), acknowledge(5, 1).frame(t, 3)}
	c := conversation.New(ps, packet.RC)
	judged := 0
	for _, d := range c.Directions {
		if !d.HasRequests() {
			continue
		}
		judged++
		streams, unrequested := c.Streams(d)
		if len(streams) != 1 || len(unrequested) != 1 || unrequested[0].No != 1 {
			t.Errorf("%d streams, replies without a request %v", len(streams), numbers(unrequested))
		}
	}
	if judged != 1 {
		t.Errorf("%d directions have requests, want 1", judged)
	}
}
