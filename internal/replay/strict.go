package replay

import (
	"fmt"

	"softroce/internal/conversation"
	"softroce/packet"
)

// compareChoices compares what an implementation may choose.
func (v *Verdict) compareChoices(e *conversation.Transmission, m *sentPacket) {
	for _, f := range []struct {
		name     string
		captured any
		softroce any
	}{
		{"AckReq", e.AckReq, m.AckReq},
		{"P_Key", e.PKey, m.PKey},
		{"pad count", e.Pad, m.Pad},
	} {
		if f.captured != f.softroce {
			v.differ(e, f.name, fmt.Sprint(f.captured), fmt.Sprint(f.softroce))
		}
	}
}

// mostMigrated returns the MigReq of most packets: the path migration state of the captured NIC,
// which softroce does not have to share.
func mostMigrated(sent []*conversation.Transmission) bool {
	n := 0
	for _, e := range sent {
		if e.MigReq {
			n++
		}
	}
	return 2*n > len(sent)
}

// comparePaths compares what links and paths choose: UDP source port, IPv4 Identification, and
// whether MigReq changes.
func (s *stream) comparePaths() {
	port, known := sourcePort(s.report.From, s.report.To)
	for _, side := range []struct {
		v    *Verdict
		sent []*conversation.Transmission
	}{{&s.report.Requester, s.Sent}, {&s.report.Responder, s.RepliesSent}} {
		migrated := mostMigrated(side.sent)
		for i, e := range side.sent {
			if e.MigReq != migrated {
				side.v.differ(e, "MigReq", fmt.Sprint(e.MigReq), fmt.Sprintf("%v, as in most packets", migrated))
			}
			if known && e.Network == packet.RoCEv2 && e.SrcPort != port {
				side.v.differ(e, "UDP source port", fmt.Sprint(e.SrcPort), fmt.Sprint(port))
			}
			if i > 0 && e.IsIPv4() && int16(e.ID-side.sent[i-1].ID) <= 0 {
				side.v.differ(e, "IP identification", fmt.Sprintf("%#04x", e.ID), fmt.Sprintf("above %#04x, that of packet %d", side.sent[i-1].ID, side.sent[i-1].No))
			}
		}
	}
}

// sourcePort returns the port that softroce uses in both directions between two queue pairs whose
// address vectors have no flow label.
func sourcePort(a, b End) (port uint16, known bool) {
	v := uint64(a.QPN) * uint64(b.QPN)
	v ^= v >> 20
	v ^= v >> 40
	return uint16(0xc000 | v&0x3fff ^ v>>14&0x3f), a.Known && b.Known
}
