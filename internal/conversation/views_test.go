package conversation_test

import (
	"slices"
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// on returns a packet as captured on an interface.
func on(p *capture.Packet, iface int) *capture.Packet {
	q := *p
	q.Interface = iface
	return &q
}

func TestPacketOnAnotherInterfaceIsAView(t *testing.T) {
	a := sent{op: packet.SendOnly, psn: 5, id: 7, payload: 4}.frame(t, 1)
	again := sent{op: packet.SendOnly, psn: 5, id: 8, payload: 4}.frame(t, 1)
	next := sent{op: packet.SendOnly, psn: 6, id: 8, payload: 4}.frame(t, 1)
	for _, c := range []struct {
		name    string
		packets capture.Packets
		want    []bool
	}{
		{"sent and received", capture.Packets{on(a, 0), on(a, 1)}, []bool{false, true}},
		{"three interfaces", capture.Packets{on(a, 2), on(a, 0), on(a, 1)}, []bool{false, true, true}},
		{"two packets sent, then received", capture.Packets{on(a, 0), on(next, 0), on(a, 1), on(next, 1)}, []bool{false, false, true, true}},
		{"repeated on one interface", capture.Packets{on(a, 0), on(a, 0)}, []bool{false, false}},
		{"repeated without a number", capture.Packets{on(a, 0), on(a, 1), on(a, 0), on(a, 1)}, []bool{false, true, false, true}},
		{"repeated without a number, one lost on the way", capture.Packets{on(a, 0), on(a, 0), on(a, 1)}, []bool{false, false, true}},
		{"retransmitted through another interface", capture.Packets{on(a, 0), on(again, 1)}, []bool{false, false}},
	} {
		v := conversation.NewViews()
		var got []bool
		for _, p := range c.packets {
			got = append(got, v.IsAnother(p))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: another view: %v, want %v", c.name, got, c.want)
		}
	}
}

// The second interface may have its first packet late.
func TestManyPacketsOfOneInterfaceAreRemembered(t *testing.T) {
	const remembered, packets = 1 << 16, 5 << 15
	p := sent{op: packet.SendOnly, id: 7, payload: 4}.frame(t, 1)
	v := conversation.NewViews()
	numbered := func(i, iface int) *capture.Packet {
		q := on(p, iface)
		q.DestQP = uint32(i)
		return q
	}
	for i := range packets {
		if v.IsAnother(numbered(i, 0)) {
			t.Fatalf("packet %d is another view", i)
		}
	}
	for i := range remembered {
		if n := packets - remembered + i; !v.IsAnother(numbered(n, 1)) {
			t.Fatalf("packet %d of the other interface is no view", n)
		}
	}
}

// Requests that were recorded on one interface and replies that were recorded on another one belong
// to one connection; of a packet that was recorded on both, the first view does.
func TestConnectionSpansInterfaces(t *testing.T) {
	request := sent{op: packet.SendOnly, psn: 5, ackReq: true}.frame(t, 1)
	reply := acknowledge(5, 1).frame(t, 2)
	for _, c := range []struct {
		name    string
		packets capture.Packets
		views   int
	}{
		{"each where it was sent", capture.Packets{on(request, 0), on(reply, 1)}, 0},
		{"each on both", capture.Packets{on(request, 0), on(request, 1), on(reply, 1), on(reply, 0)}, 2},
	} {
		got := conversation.New(c.packets, packet.RC)
		if len(got.Directions) != 2 || got.Directions[0].Peer != got.Directions[1] || got.Views != c.views {
			t.Errorf("%s: %d directions, %d further views, want 2 that are opposite, %d views", c.name, len(got.Directions), got.Views, c.views)
			continue
		}
		streams, unrequested := got.Streams(got.Directions[0])
		if len(streams) != 1 || len(unrequested) != 0 || len(streams[0].Requests) != 1 || len(streams[0].Replies) != 1 {
			t.Errorf("%s: %d streams, %d replies without a request", c.name, len(streams), len(unrequested))
		}
	}
}
