package conversation_test

import (
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

const fixtures = "../../pcap-fixtures/"

func load(t *testing.T, file string) capture.Packets {
	t.Helper()
	ps, err := capture.Load(fixtures + file)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func TestUnwrapCountsOnAcrossWrap(t *testing.T) {
	const near = conversation.Origin + 0xffffff
	for psn, want := range map[uint32]int64{0xfffffe: near - 1, 0xffffff: near, 0: near + 1, 5: near + 6} {
		if got := conversation.Unwrap(psn, near); got != want || conversation.Wrap(got) != psn {
			t.Errorf("Unwrap(%#x, %#x) = %#x, want %#x", psn, int64(near), got, want)
		}
	}
}

func TestPathMTUIsShownByFirstAndMiddle(t *testing.T) {
	var m conversation.PathMTU
	m.Add(&packet.Header{BTH: packet.BTH{Opcode: packet.SendOnly}}, 700)
	if mtu, shown := m.Value(); mtu != 1024 || shown {
		t.Errorf("after SEND_ONLY of 700 bytes: %d, shown %v; want a guess of 1024", mtu, shown)
	}
	m.Add(&packet.Header{BTH: packet.BTH{Opcode: packet.SendFirst, PSN: 1}}, 4096)
	if mtu, shown := m.Value(); mtu != 4096 || !shown {
		t.Errorf("after SEND_FIRST of 4096 bytes: %d, shown %v", mtu, shown)
	}
}

func TestPathMTUIsInferredFromREADs(t *testing.T) {
	var m conversation.PathMTU
	for _, psn := range []uint32{0, 4, 8} {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.ReadRequest, PSN: psn}}
		h.RETH.Length = 8192
		m.Add(&h, 0)
	}
	if mtu, shown := m.Value(); mtu != 2048 || shown {
		t.Errorf("READs of 8192 bytes that take 4 PSNs: path MTU %d, shown %v", mtu, shown)
	}
}

func TestDirectionsOfOneConnectionArePaired(t *testing.T) {
	c := conversation.New(load(t, "pp-srq.pcap"), packet.RC)
	if len(c.Directions) != 4 {
		t.Fatalf("%d directions, want 4", len(c.Directions))
	}
	for _, d := range c.Directions {
		if d.Peer == nil || d.Peer.Peer != d || d.Peer.Src != d.Dst {
			t.Errorf("%v has the peer %v", d.FlowKey, d.Peer)
		}
		streams, unrequested := c.Streams(d)
		if len(streams) != 1 || len(unrequested) != 0 || len(streams[0].Replies) == 0 {
			t.Errorf("%v: %d streams, %d replies without a request", d.FlowKey, len(streams), len(unrequested))
		}
	}
}

func TestMessagesAreContiguous(t *testing.T) {
	c := conversation.New(load(t, "vp-all-ops.pcap"), packet.RC)
	messages := 0
	for _, d := range c.Directions {
		streams, _ := c.Streams(d)
		for _, s := range streams {
			next := s.FirstSeq
			messages += len(s.Messages)
			for i, m := range s.Messages {
				if m.First != next || m.Broken != nil || s.MessageAt(m.First) != m || s.MessagesThrough(m.End()-1) != uint32(i+1) {
					t.Errorf("%v: message %d has PSNs %d to %d, want it to begin at %d", d.FlowKey, i, m.First, m.End(), next)
				}
				next = m.End()
			}
		}
	}
	if messages < 10 {
		t.Errorf("only %d messages", messages)
	}
}
