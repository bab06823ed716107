package replay

import (
	"bytes"
	"fmt"
	"slices"

	"softroce/internal/conversation"
)

// Known deviations from the specification: adaptive retransmission of softroce and of hardware
// adapters, all others of the Linux driver.
const (
	deviationTooLong     = "a SEND longer than the receive buffer is refused with remote operational error (0x63) instead of invalid request (0x61)"
	deviationNAKAfterRNR = "after an RNR NAK the rest of the message causes a sequence NAK for the same PSN"
	deviationResume      = "a READ retransmitted from its middle is answered with MIDDLE or LAST instead of FIRST or ONLY"
	deviationReACK       = "a duplicate that arrives before anything was accepted is acknowledged with PSN 0xffffff"
	deviationLength      = "a packet whose length does not fit its position in the message is accepted"
	deviationFlag        = "the completion of a SEND with invalidate lacks IBV_WC_WITH_INV"
	deviationGap         = "a missing response packet in the middle of a READ is requested again only after the timeout"
	deviationTimer       = "a running timer is not restarted when a reply arrives, so that it expires too early"
	deviationAdaptive    = "after a loss a request is retransmitted before the local ACK timeout (adaptive retransmission)"
	deviationForever     = "a retry count of 7 is not exhausted"
)

// deviate records a known deviation that a packet shows.
func (v *Verdict) deviate(name string, e *conversation.Transmission) {
	for i := range v.Deviations {
		if v.Deviations[i].Name == name {
			v.Deviations[i].Packets = append(v.Deviations[i].Packets, e.No)
			return
		}
	}
	v.Deviations = append(v.Deviations, Deviation{name, []int{e.No}})
}

// deviateAtEnd records a known deviation that no packet shows.
func (v *Verdict) deviateAtEnd(name string) {
	if !v.deviated(name) {
		v.Deviations = append(v.Deviations, Deviation{name, []int{}})
	}
}

// deviated reports whether a known deviation was recorded.
func (v *Verdict) deviated(name string) bool {
	return slices.ContainsFunc(v.Deviations, func(d Deviation) bool { return d.Name == name })
}

// differ records a difference.
func (v *Verdict) differ(e *conversation.Transmission, field, captured, softroce string) {
	v.Differences = append(v.Differences, Difference{e.No, e.BTH.PSN, field, captured, softroce})
}

// comparePayload records the first byte in which payloads differ, as far as the capture has them.
func (v *Verdict) comparePayload(e *conversation.Transmission, softroce []byte) {
	if len(e.Payload) != len(softroce) {
		v.differ(e, "payload length", fmt.Sprint(len(e.Payload)), fmt.Sprint(len(softroce)))
		return
	}
	for i, b := range e.CapturedPayload() {
		if b != softroce[i] {
			v.differ(e, fmt.Sprintf("payload byte %d", i), fmt.Sprintf("%#02x", b), fmt.Sprintf("%#02x", softroce[i]))
			return
		}
	}
}

// samePayload reports whether payloads are the same, as far as the capture has them.
func samePayload(e *conversation.Transmission, softroce []byte) bool {
	captured := e.CapturedPayload()
	return len(e.Payload) == len(softroce) && bytes.Equal(captured, softroce[:len(captured)])
}
