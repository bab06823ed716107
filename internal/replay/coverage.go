package replay

import (
	"fmt"
	"strings"

	"softroce/internal/conversation"
)

// This file says what of a capture was compared. "No differences" means little without it.

// compared counts the packets that were compared.
func (r *Report) compared() int {
	n := 0
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			n += s.Responder.Compared + s.Requester.Compared
		}
	}
	return n
}

// unpaired records the directions of a capture whose opposite direction was not found.
func (r *Report) unpaired(ds []*conversation.Direction) {
	for _, d := range ds {
		if d.Peer == nil {
			r.Unpaired = append(r.Unpaired, d.String())
		}
	}
}

// Incomplete returns why "no differences" would say too much: nothing was compared, or there are
// requests and replies that could not be brought together. It returns nil if all of RC was compared
// that can be.
func (r *Report) Incomplete() []string {
	var why []string
	switch {
	case r.RoCE == 0:
		why = append(why, "nothing was compared: there is no RoCEv2 packet")
	case r.Compared == 0 && len(r.Connections) > 0:
		why = append(why, "nothing was compared: all that the capture has may repeat or answer what was sent before it")
	case r.Compared == 0:
		why = append(why, "nothing was compared: there is no RC connection with a request")
	}
	if r.Headless > 0 {
		why = append(why, fmt.Sprintf("%s were not compared: the capture cuts headers of their packets", Count(r.Headless, "connection")))
	}
	if n := len(r.Unpaired); n > 0 {
		text := fmt.Sprintf("requests and replies were not brought together: %s without an opposite direction: %s", Count(n, "flow"), strings.Join(r.Unpaired[:min(n, shownFlows)], ", "))
		if n > shownFlows {
			text += fmt.Sprintf(", and %d more", n-shownFlows)
		}
		why = append(why, text)
	}
	return why
}

// shownFlows bounds the flows that one line names.
const shownFlows = 8

// ComparedText returns the last line of a report: how many differences in how many packets.
func ComparedText(differences, compared int) string {
	if compared == 0 {
		return "nothing was compared"
	}
	return fmt.Sprintf("%s in %s compared", Count(differences, "difference"), Count(compared, "packet"))
}
