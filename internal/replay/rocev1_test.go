package replay_test

import (
	"testing"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// A connection of RoCE v1 is compared as one of RoCEv2. Its packets have no UDP port and no
// Identification to compare.
func TestReplayOfRoCEv1(t *testing.T) {
	for _, file := range []string{"pp-rc-mtu1024.pcap", "loss-pp-rc.pcap"} {
		ps := load(t, file)
		v2, v1 := packets(t, ps, replay.Options{Strict: true}), packets(t, toRoCEv1(t, ps), replay.Options{Strict: true})
		if len(v1.Connections) != len(v2.Connections) || v1.RC != v2.RC || len(v1.Skipped) != 0 {
			t.Fatalf("%s: %v\nas RoCEv2 %v", file, v1, v2)
		}
		for i, c := range v1.Connections {
			for k, s := range c.Streams {
				w := v2.Connections[i].Streams[k]
				if len(s.Requester.Differences) > len(w.Requester.Differences) || len(s.Responder.Differences) > len(w.Responder.Differences) {
					t.Errorf("%s: %v\nas RoCEv2 %v", file, s, w)
				}
			}
		}
	}
}

// toRoCEv1 returns packets with the headers of RoCE v1 in front of the same BTHs.
func toRoCEv1(t *testing.T, ps capture.Packets) (l capture.Packets) {
	t.Helper()
	for _, p := range ps {
		a := p.Addressing
		a.Network, a.ID, a.SrcPort, a.DstPort, a.UDPChecksum = packet.RoCEv1, 0, 0, 0, 0
		var tx packet.Tx
		tx.Set(&p.Header, p.Payload)
		rec := p.Record
		rec.Data = packet.AppendFrame(nil, &a, &tx)
		rec.Length = len(rec.Data)
		q, err := capture.Parse(rec)
		if err != nil {
			t.Fatal(err)
		}
		l = append(l, q)
	}
	return l
}
