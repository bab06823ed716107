package replay_test

import (
	"testing"

	"softroce/internal/capturetest"
	"softroce/internal/replay"
)

// A connection of RoCE v1 is compared as one of RoCEv2. Its packets have no UDP port and no
// Identification to compare.
func TestReplayOfRoCEv1(t *testing.T) {
	for _, file := range []string{"pp-rc-mtu1024.pcap", "loss-pp-rc.pcap"} {
		ps := load(t, file)
		v2, v1 := packets(t, ps, replay.Options{Strict: true}), packets(t, capturetest.RoCEv1(t, ps), replay.Options{Strict: true})
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
