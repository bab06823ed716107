package liveplay

import (
	"fmt"
	"io"
	"strings"

	"softroce/internal/replay"
)

// A Report is the result of a play. It marshals to JSON. In its differences, Captured is what the
// live NIC sent; packet numbers are those on the link, from 1.
type Report struct {
	File    string        `json:"file,omitempty"`
	Link    string        `json:"link,omitempty"`
	Strict  bool          `json:"strict"`
	Left    []replay.Note `json:"left"` // streams of the capture that cannot be played
	Streams []*Stream     `json:"streams"`
	Count   int           `json:"differences_total"` // what Differences returns
}

// A Stream is one played side of a captured stream: the requester's, played to a live responder, or
// the responder's, played to a live requester.
type Stream struct {
	Side      Side          `json:"side"` // the side that was played
	From      replay.End    `json:"from"` // in the capture: the requester
	To        replay.End    `json:"to"`   // in the capture: the responder
	Peer      replay.End    `json:"peer"` // the live queue pair
	PathMTU   int           `json:"path_mtu"`
	FirstPSN  uint32        `json:"first_psn"`
	Posted    int           `json:"posted,omitempty"` // work requests posted to the live requester
	Sent      int           `json:"sent"`             // packets
	SentAgain int           `json:"sent_again"`       // of them, because the network lost a packet
	LeftOut   int           `json:"left_out"`         // captured packets that the captured receiver did not receive
	Requests  int           `json:"requests"`
	Replies   int           `json:"replies"`
	NotPlayed []replay.Note `json:"not_played"` // packet numbers of the capture

	// The verdict on the live NIC's packets, under the side that the live NIC is on.
	Responder *replay.Verdict `json:"responder,omitempty"`
	Requester *replay.Verdict `json:"requester,omitempty"`
}

// Verdict returns the verdict on the live NIC's packets.
func (s *Stream) Verdict() *replay.Verdict {
	if s.Side == Responder {
		return s.Requester
	}
	return s.Responder
}

// Differences counts the differences of all streams.
func (r *Report) Differences() int {
	n := 0
	for _, s := range r.Streams {
		n += len(s.Verdict().Differences)
	}
	return n
}

// compared counts the packets of the live NIC that were compared.
func (r *Report) compared() int {
	n := 0
	for _, s := range r.Streams {
		n += s.Verdict().Compared
	}
	return n
}

// Incomplete returns why "no differences" would say too much, nil if it does not.
func (r *Report) Incomplete() []string {
	if r.compared() == 0 {
		return []string{"nothing was compared"}
	}
	return nil
}

// String returns the report as text.
func (r *Report) String() string {
	var b strings.Builder
	r.WriteText(&b)
	return b.String()
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s onto %s: %s\n", r.File, r.Link, r.played())
	for _, n := range r.Left {
		fmt.Fprintf(&b, "  cannot be played: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, s := range r.Streams {
		s.writeText(&b)
	}
	fmt.Fprintf(&b, "%s\n", replay.ComparedText(r.Differences(), r.compared()))
	_, err := io.WriteString(w, b.String())
	return err
}

// played returns the number of streams, and whether both sides of them were played.
func (r *Report) played() string {
	n := map[Side]int{}
	for _, s := range r.Streams {
		n[s.Side]++
	}
	text := replay.Count(max(n[Requester], n[Responder]), "stream")
	if n[Requester] > 0 && n[Responder] > 0 {
		text += ", both sides"
	}
	return text
}

func (s *Stream) writeText(b *strings.Builder) {
	live := Responder
	if s.Side == Responder {
		live = Requester
		fmt.Fprintf(b, "%v > %v, from %v: %s posted, %s, %s sent", s.From, s.To, s.Peer, replay.Count(s.Posted, "work request"), replay.Count(s.Requests, "request"), replay.Count(s.Sent, "reply"))
	} else {
		fmt.Fprintf(b, "%v > %v, to %v: %s sent", s.From, s.To, s.Peer, replay.Count(s.Sent, "request"))
	}
	if s.SentAgain > 0 {
		fmt.Fprintf(b, ", %d of them again", s.SentAgain)
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(b, ", %d left out that did not arrive in the capture", s.LeftOut)
	}
	if s.Side == Requester {
		fmt.Fprintf(b, ", %s", replay.Count(s.Replies, "reply"))
	}
	fmt.Fprintf(b, ", path MTU %d\n", s.PathMTU)
	s.Verdict().WriteText(b, string(live))
	for _, n := range s.NotPlayed {
		fmt.Fprintf(b, "    not as captured: packet %d of the capture: %s\n", n.Packet, n.Text)
	}
}
