package replay_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// Recorded between two queue pairs of softroce on a fabric that duplicates and reorders packets.
func TestReorderedRetransmissionsAreExplained(t *testing.T) {
	for _, c := range []struct{ name, why string }{
		{"copied-again.pcapng", "a READ and two atomics are retransmitted, and the network duplicates one of these"},
		{"late-read.pcapng", "a NAK names a READ; it is retransmitted, and the first one arrives after that"},
		{"overtaken-read.pcapng", "a READ arrives after an atomic that is retransmitted after it"},
		{"nak-in-flight.pcapng", "the requester goes back before it receives the NAK that a WRITE ahead of its READ causes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ps, err := capture.Load(filepath.Join("testdata", "impaired", c.name))
			if err != nil {
				t.Fatal(err)
			}
			r := packets(t, ps, replay.Options{})
			if r.Differences() != 0 {
				t.Errorf("%s: %v", c.why, r)
			}
			early := map[int]bool{} // replies to requests before the recording, which is a part of a longer one
			for _, s := range r.Connections[0].Streams {
				for _, n := range s.Responder.NotJudged {
					early[n.Packet] = true
				}
			}
			judged := 0
			for i, p := range ps {
				requested := slices.ContainsFunc(ps[:i], func(q *capture.Packet) bool { return q.Src == p.Dst && q.Opcode.Info().Request })
				if !reply(p) || !requested || early[p.No] {
					continue
				}
				judged++
				wrong := slices.Clone(ps)
				wrong[i] = altered(t, p, func(h *packet.Header, _ []byte) { h.AETH.MSN = (h.AETH.MSN + 100) & packet.PSNMask })
				if packets(t, wrong, replay.Options{}).Differences() == 0 {
					t.Errorf("packet %d: changing its MSN is not reported", p.No)
				}
			}
			if judged == 0 {
				t.Error("no reply was changed")
			}
		})
	}
}

// A sender that does not number its packets may repeat one long before a millisecond has passed:
// the repetition is a retransmission, which replay judges, and not a copy made by the network.
func TestRetransmissionSoonAfterRNRNAKIsJudged(t *testing.T) {
	send := packet.Header{BTH: packet.BTH{Opcode: packet.SendOnly, DestQP: 17, PSN: 5, AckReq: true}}
	answer := func(s packet.Syndrome, msn uint32) packet.Header {
		return packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge, DestQP: 18, PSN: 5}, AETH: packet.AETH{Syndrome: s, MSN: msn}}
	}
	const timer = 1 // 10 µs
	var ps capture.Packets
	for i, p := range []struct {
		at   time.Duration
		back bool
		h    packet.Header
	}{
		{0, false, send},
		{3 * time.Microsecond, true, answer(packet.SyndromeRNR|timer, 0)},
		{15 * time.Microsecond, false, send},
		{18 * time.Microsecond, true, answer(packet.CreditsUnlimited, 1)},
	} {
		q := sentPacket(t, i+1, p.back, 0, p.h, 0)
		q.Time = time.Unix(1, 0).Add(p.at)
		ps = append(ps, q)
	}
	r := packets(t, ps, replay.Options{})
	if v := r.Connections[0].Streams[0].Requester; v.Compared != 2 || r.Differences() != 0 {
		t.Errorf("want 2 requests compared, no differences; got %v", r)
	}
}
