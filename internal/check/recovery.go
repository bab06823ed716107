package check

import (
	"fmt"
	"time"

	"softroce/internal/conversation"
)

// A Cause is why a requester went back and sent packets again.
type Cause string

// Causes of a Recovery.
const (
	CauseNAK      Cause = "nak"      // a sequence NAK names the PSN
	CauseRNR      Cause = "rnr"      // an RNR NAK names the PSN
	CauseResponse Cause = "response" // the response to a READ or atomic was lost, others were not
	CauseTimeout  Cause = "timeout"  // nothing in the capture: no reply arrived in time
)

// noun returns what one recovery for this cause shows.
func (c Cause) noun() string {
	return map[Cause]string{CauseNAK: "sequence NAK", CauseRNR: "RNR NAK", CauseResponse: "missing response", CauseTimeout: "timeout"}[c]
}

var causes = []Cause{CauseNAK, CauseRNR, CauseResponse, CauseTimeout}

// A Recovery is packets that a requester sent again, from a PSN on.
type Recovery struct {
	Flow    string `json:"flow"`
	Cause   Cause  `json:"cause"`
	By      int    `json:"by"`           // the NAK; otherwise the transmission before, 0 if the capture lacks it
	WaitNs  int64  `json:"wait_ns"`      // since By
	PSN     uint32 `json:"psn"`          // of the first packet
	First   int    `json:"first"`        // number of the first packet
	Last    int    `json:"last"`         // number of the last packet
	Packets int    `json:"packet_count"` // how many were sent again
}

// SentAgain counts recoveries, and the packets in them.
type SentAgain struct {
	Recoveries int `json:"recovery_count"`
	Packets    int `json:"packet_count"`
}

// A recovering is the recovery that a stream is in. It counts once a packet of it is known to have
// been sent before: until then the packet may only be late.
type recovering struct {
	Recovery
	open    bool
	counted bool
	index   int // in Report.Recoveries, -1: not listed
	nak     int // the NAK that explained the latest recovery: it explains no other
}

// sentAgain counts the request p of r if it was sent before, or goes back. It precedes what resend
// and checkRNRWait record.
func (s *stream) sentAgain(p *judgedPacket, r *request, seq int64, repeat bool) {
	g := &s.recovering
	switch {
	case seq < s.prevEnd:
		*g = recovering{Recovery: s.recovery(p, r, seq, repeat), open: true, nak: g.nak}
		if g.Cause == CauseNAK || g.Cause == CauseRNR {
			g.nak = g.By
		}
	case !repeat && r.End() >= s.next:
		g.open = false
	}
	if !g.open {
		return
	}
	g.Packets++
	g.Last = p.No
	if repeat || g.counted {
		s.countRecovery(g)
	}
}

// recovery returns the recovery that begins with p.
func (s *stream) recovery(p *judgedPacket, r *request, seq int64, repeat bool) Recovery {
	c := Recovery{Flow: p.name(), Cause: CauseTimeout, PSN: conversation.Wrap(seq), First: p.No}
	at := r.at
	if repeat {
		c.By = r.no
	}
	switch {
	case s.rnr.active && seq == s.rnr.seq && s.rnr.no != s.recovering.nak:
		c.Cause, c.By, at = CauseRNR, s.rnr.no, s.rnr.at
	case s.nak.active && seq >= s.nak.seq && s.nak.no != s.recovering.nak:
		c.Cause, c.By, at = CauseNAK, s.nak.no, s.nak.at
	case r.Info.Kind.HasOwnResponse() && s.positive >= seq:
		c.Cause = CauseResponse
	}
	c.WaitNs = max(0, p.at-at)
	return c
}

// countRecovery counts a packet of g, and those before it when it is the first that counts.
func (s *stream) countRecovery(g *recovering) {
	n := s.SentAgain[g.Cause]
	if !g.counted {
		g.counted = true
		n.Recoveries++
		n.Packets += g.Packets
		g.index = -1
		if len(s.Recoveries) < maxRecoveries {
			g.index = len(s.Recoveries)
			s.Recoveries = append(s.Recoveries, g.Recovery)
		}
	} else {
		n.Packets++
	}
	s.Report.SentAgain[g.Cause] = n
	if g.index >= 0 {
		s.Recoveries[g.index] = g.Recovery
	}
}

func (r *Recovery) String() string {
	which := fmt.Sprintf("packet %d", r.First)
	if r.Last != r.First {
		which = fmt.Sprintf("packets %d to %d, %s", r.First, r.Last, count(r.Packets, "packet"))
	}
	return fmt.Sprintf("%s from PSN %d, to %s: %s", which, r.PSN, r.Flow, r.why())
}

func (r *Recovery) why() string {
	wait := time.Duration(r.WaitNs)
	switch {
	case r.Cause == CauseNAK:
		return fmt.Sprintf("sequence NAK, packet %d", r.By)
	case r.Cause == CauseRNR:
		return fmt.Sprintf("RNR NAK, packet %d, %v before", r.By, wait)
	case r.Cause == CauseResponse:
		return fmt.Sprintf("the response to packet %d was lost, at least in part", r.By)
	case r.By == 0:
		return "no reply reached the requester in time"
	}
	return fmt.Sprintf("no reply reached the requester in time, %v after packet %d", wait, r.By)
}
