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
			n += s.compared()
		}
	}
	return n
}

// compared counts the packets of a stream that were compared.
func (s *Stream) compared() int { return s.Responder.Compared + s.Requester.Compared }

// unpaired records the directions of a capture whose opposite direction was not found.
func (r *Report) unpaired(ds []*conversation.Direction) {
	for _, d := range ds {
		if d.Peer == nil {
			r.Unpaired = append(r.Unpaired, d.String())
		}
	}
}

// Incomplete returns why "no differences" would say too much: nothing was compared, at all or of a
// stream, or there are requests and replies that could not be brought together. It returns nil if
// all of RC was compared that can be.
func (r *Report) Incomplete() []string {
	var why []string
	switch {
	case r.RoCE == 0:
		why = append(why, "nothing was compared: there is no RoCE or InfiniBand packet")
	case r.Compared == 0 && len(r.Connections) > 0:
		why = append(why, "nothing was compared: all that the capture has may repeat or answer what was sent before it")
	case r.Compared == 0:
		why = append(why, "nothing was compared: there is no RC connection with a request")
	}
	if r.Headless > 0 {
		why = append(why, fmt.Sprintf("%s were not compared: the capture cuts headers of their packets", Count(r.Headless, "connection")))
	}
	if skipped := r.skippedStreams(); r.Compared > 0 && len(skipped) > 0 {
		why = append(why, fmt.Sprintf("%s: nothing was compared; all of it may repeat or answer what was sent before the capture: %s",
			Count(len(skipped), "stream"), shortList(skipped)))
	}
	if n := len(r.Unpaired); n > 0 {
		why = append(why, fmt.Sprintf("requests and replies were not brought together: %s without an opposite direction: %s", Count(n, "flow"), shortList(r.Unpaired)))
	}
	return why
}

// skippedStreams names the streams of which nothing was compared.
func (r *Report) skippedStreams() (names []string) {
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			if s.compared() == 0 {
				names = append(names, fmt.Sprintf("%v > %v", s.From, s.To))
			}
		}
	}
	return names
}

// shortList joins the first few names.
func shortList(names []string) string {
	text := strings.Join(names[:min(len(names), shownFlows)], ", ")
	if n := len(names); n > shownFlows {
		text += fmt.Sprintf(", and %d more", n-shownFlows)
	}
	return text
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
