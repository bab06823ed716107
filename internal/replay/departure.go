package replay

import (
	"fmt"
	"slices"

	"softroce/internal/conversation"
)

// Known departures of the Linux driver from the specification.
const (
	departTooLong     = "a SEND longer than the receive buffer is refused as remote operational error (0x63) instead of invalid request (0x61)"
	departNAKAfterRNR = "after an RNR NAK the rest of the message draws a sequence NAK for the same PSN"
	departResume      = "a READ that is asked for again from its middle is answered with MIDDLE or LAST instead of FIRST or ONLY"
	departReACK       = "a duplicate that comes before anything was accepted is acknowledged with PSN 0xffffff"
	departLength      = "a packet whose length does not fit its place in the message is accepted"
	departFlag        = "a receive whose message invalidates a key does not say so in its completion"
	departGap         = "a response that is missing amid those of a READ is asked for again only when the timeout has run out"
	departTimer       = "a timeout that has begun before is not begun anew when an answer comes, so that it runs out too soon"
	departForever     = "a retry count of 7 does not run out"
)

// depart notes a known departure.
func (v *Verdict) depart(name string, e *conversation.Transmission) {
	for i := range v.Departures {
		if v.Departures[i].Name == name {
			v.Departures[i].Packets = append(v.Departures[i].Packets, e.No)
			return
		}
	}
	v.Departures = append(v.Departures, Departure{name, []int{e.No}})
}

// departAtEnd notes a known departure that no packet shows.
func (v *Verdict) departAtEnd(name string) {
	if !v.departed(name) {
		v.Departures = append(v.Departures, Departure{name, []int{}})
	}
}

// departed reports whether a known departure was noted.
func (v *Verdict) departed(name string) bool {
	return slices.ContainsFunc(v.Departures, func(d Departure) bool { return d.Name == name })
}

// differ notes a difference.
func (v *Verdict) differ(e *conversation.Transmission, field, captured, softroce string) {
	v.Differences = append(v.Differences, Difference{e.No, e.BTH.PSN, field, captured, softroce})
}

// differPayload notes the first byte in which payloads differ.
func (v *Verdict) differPayload(e *conversation.Transmission, softroce []byte) {
	if len(e.Payload) != len(softroce) {
		v.differ(e, "payload length", fmt.Sprint(len(e.Payload)), fmt.Sprint(len(softroce)))
		return
	}
	for i, b := range e.Payload {
		if b != softroce[i] {
			v.differ(e, fmt.Sprintf("payload byte %d", i), fmt.Sprintf("%#02x", b), fmt.Sprintf("%#02x", softroce[i]))
			return
		}
	}
}
