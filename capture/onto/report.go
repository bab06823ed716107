package onto

import (
	"fmt"
	"io"
	"strings"

	"softroce/capture/replay"
)

// A Report is what came of a play. It marshals to JSON. Captured, in its differences, are the live NIC's replies;
// packet numbers are those of the link, in the order in which packets passed it, from 1.
type Report struct {
	File    string        `json:"file,omitempty"`
	Link    string        `json:"link,omitempty"`
	Strict  bool          `json:"strict"`
	Left    []replay.Note `json:"left"` // streams of the capture that cannot be played
	Streams []*Stream     `json:"streams"`
	Count   int           `json:"differences"` // what Differences returns
}

// A Stream is the requests of one end of a captured connection, played to a live responder.
type Stream struct {
	From      replay.End     `json:"from"` // in the capture: the requester, which is played
	To        replay.End     `json:"to"`   // in the capture: the responder, whose place the live NIC takes
	Peer      replay.End     `json:"peer"` // the live queue pair
	PathMTU   int            `json:"path_mtu"`
	FirstPSN  uint32         `json:"first_psn"`
	Sent      int            `json:"sent"`       // requests
	SentAgain int            `json:"sent_again"` // of them, because no answer came from the live NIC
	LeftOut   int            `json:"left_out"`   // captured requests that the captured responder never had
	Replies   int            `json:"replies"`
	NotPlayed []replay.Note  `json:"not_played"` // packet numbers of the capture
	Verdict   replay.Verdict `json:"responder"`  // of the live NIC's replies
}

// Differences counts the differences of all streams.
func (r *Report) Differences() int {
	n := 0
	for _, s := range r.Streams {
		n += len(s.Verdict.Differences)
	}
	return n
}

// String returns the report as text.
func (r *Report) String() string {
	var b strings.Builder
	r.WriteText(&b)
	return b.String()
}

// WriteText writes the report for a person to read.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s onto %s: %s\n", r.File, r.Link, plural(len(r.Streams), "stream"))
	for _, n := range r.Left {
		fmt.Fprintf(&b, "  cannot be played: packet %d: %s\n", n.Packet, n.Text)
	}
	for _, s := range r.Streams {
		fmt.Fprintf(&b, "%v > %v, to %v: %s sent", s.From, s.To, s.Peer, plural(s.Sent, "request"))
		if s.SentAgain > 0 {
			fmt.Fprintf(&b, ", %d of them again", s.SentAgain)
		}
		if s.LeftOut > 0 {
			fmt.Fprintf(&b, ", %d left out that did not arrive in the capture", s.LeftOut)
		}
		fmt.Fprintf(&b, ", %s, path MTU %d\n", plural(s.Replies, "reply"), s.PathMTU)
		s.Verdict.WriteText(&b, "responder")
		for _, n := range s.NotPlayed {
			fmt.Fprintf(&b, "    not as captured: packet %d of the capture: %s\n", n.Packet, n.Text)
		}
	}
	fmt.Fprintf(&b, "%s\n", plural(r.Differences(), "difference"))
	_, err := io.WriteString(w, b.String())
	return err
}

func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ie"
	}
	if n == 0 {
		return "no " + what + "s"
	}
	return fmt.Sprintf("%d %ss", n, what)
}
