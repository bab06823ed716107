package replay_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// identified returns packets with other IPv4 Identifications, and the right ICRCs.
func identified(t testing.TB, ps capture.Packets, id func(p *capture.Packet) uint16) (out capture.Packets) {
	t.Helper()
	for _, p := range ps {
		q := *p
		q.Addressing.ID = id(p)
		out = append(out, altered(t, &q, func(*packet.Header, []byte) {}))
	}
	return out
}

// mirrored returns packets and a copy of each, captured later.
func mirrored(ps capture.Packets, later time.Duration) (out capture.Packets) {
	for _, p := range ps {
		q := *p
		q.Time = q.Time.Add(later)
		out = append(out, p, &q)
	}
	slices.SortStableFunc(out, func(a, b *capture.Packet) int { return a.Time.Compare(b.Time) })
	return renumbered(out)
}

// identifications are those that a NIC may have.
func identifications(t testing.TB) map[string]func(ps capture.Packets) capture.Packets {
	return map[string]func(ps capture.Packets) capture.Packets{
		"numbered": func(ps capture.Packets) capture.Packets { return ps },
		"zero": func(ps capture.Packets) capture.Packets {
			return identified(t, ps, func(*capture.Packet) uint16 { return 0 })
		},
		"random": func(ps capture.Packets) capture.Packets {
			r := rand.New(rand.NewPCG(1, 2))
			return identified(t, ps, func(*capture.Packet) uint16 { return uint16(r.Uint32()) })
		},
	}
}

// A mirror port may capture each packet twice, whatever its Identification.
func TestMirroredCaptureReplaysWithoutDifference(t *testing.T) {
	for name, with := range identifications(t) {
		for _, later := range []time.Duration{0, 3 * time.Microsecond, 20 * time.Microsecond} {
			compared := 0
			for _, f := range allFixtures(t) {
				r := packets(t, mirrored(with(load(t, f)), later), replay.Options{})
				if r.Differences() != 0 {
					t.Errorf("%s, Identifications %s, copies after %v:\n%v", f, name, later, r)
				}
				compared += r.Compared
			}
			if compared < 3500 {
				t.Errorf("Identifications %s, copies after %v: only %d packets were compared", name, later, compared)
			}
		}
	}
}

// The Identification may be anything.
func TestAnyIdentificationReplaysWithoutDifference(t *testing.T) {
	for name, with := range identifications(t) {
		compared := 0
		for _, f := range allFixtures(t) {
			r := packets(t, with(load(t, f)), replay.Options{})
			if r.Differences() != 0 {
				t.Errorf("%s, Identifications %s:\n%v", f, name, r)
			}
			compared += r.Compared
		}
		if compared < 3500 {
			t.Errorf("Identifications %s: only %d packets were compared", name, compared)
		}
	}
}

// A capture that begins after the request of the connection manager has not the beginning of the
// connection, although other messages of the manager follow.
func TestCaptureMayBeginAfterConnectionRequest(t *testing.T) {
	ps := load(t, "loss-cm-rping.pcap")
	for k := range ps {
		if r := packets(t, renumbered(ps[k:]), replay.Options{}); r.Differences() != 0 || r.Compared == 0 && len(r.Incomplete()) == 0 {
			t.Errorf("from packet %d:\n%v", ps[k].No, r)
		}
	}
}
