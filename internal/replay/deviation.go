package replay

import (
	"fmt"
	"slices"

	"softroce/internal/conversation"
)

// Known departures of the Linux driver from the specification.
const (
	deviationTooLong     = "a SEND longer than the receive buffer is refused as remote operational error (0x63) instead of invalid request (0x61)"
	deviationNAKAfterRNR = "after an RNR NAK the rest of the message draws a sequence NAK for the same PSN"
	deviationResume      = "a READ that is asked for again from its middle is answered with MIDDLE or LAST instead of FIRST or ONLY"
	deviationReACK       = "a duplicate that comes before anything was accepted is acknowledged with PSN 0xffffff"
	deviationLength      = "a packet whose length does not fit its place in the message is accepted"
	deviationFlag        = "a receive whose message invalidates a key does not say so in its completion"
	deviationGap         = "a response that is missing amid those of a READ is asked for again only when the timeout has run out"
	deviationTimer       = "a timeout that has begun before is not begun anew when an answer comes, so that it runs out too soon"
	deviationForever     = "a retry count of 7 does not run out"
)

// deviate notes a known departure.
func (v *Verdict) deviate(name string, e *conversation.Transmission) {
	for i := range v.Deviations {
		if v.Deviations[i].Name == name {
			v.Deviations[i].Packets = append(v.Deviations[i].Packets, e.No)
			return
		}
	}
	v.Deviations = append(v.Deviations, Deviation{name, []int{e.No}})
}

// deviateAtEnd notes a known departure that no packet shows.
func (v *Verdict) deviateAtEnd(name string) {
	if !v.deviated(name) {
		v.Deviations = append(v.Deviations, Deviation{name, []int{}})
	}
}

// deviated reports whether a known departure was noted.
func (v *Verdict) deviated(name string) bool {
	return slices.ContainsFunc(v.Deviations, func(d Deviation) bool { return d.Name == name })
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
