package conversation

import (
	"time"

	"softroce/capture"
)

// A mirror port that sees packets where they enter and where they leave a switch captures each
// twice. As with the views of several interfaces, the first is judged. Such a capture shows itself:
// nearly every packet is there an even number of times, each copy soon after its packet. Packets
// that a NIC sends again are among others that it does not.

const (
	// maxMirrorDelay bounds the time between a packet and its copy: a switch may queue the packet.
	maxMirrorDelay = time.Millisecond

	// fewMirrored is the number of different packets up to which all have to have a copy.
	fewMirrored = 8
)

// furtherViews reports for each packet whether it is another view of one before.
func furtherViews(ps capture.Packets) []bool {
	further := make([]bool, len(ps))
	views := NewViews()
	var first capture.Packets
	for i, p := range ps {
		further[i] = views.IsAnother(p)
		if !further[i] {
			first = append(first, p)
		}
	}
	copies := mirrorCopies(first)
	for i, p := range ps {
		further[i] = further[i] || copies[p]
	}
	return further
}

// mirrorCopies returns the copies of packets that a mirror port made, none if it made none.
func mirrorCopies(ps capture.Packets) map[*capture.Packet]bool {
	copies := map[*capture.Packet]bool{}
	alone := map[viewKey]*capture.Packet{} // the latest packet without a copy
	mirrored := map[viewKey]bool{}
	for _, p := range ps {
		k := viewKey{p.ICRC(), p.DestQP, p.PSN, p.ID, anyInterface}
		if before := alone[k]; before != nil && p.Time.Sub(before.Time) < maxMirrorDelay {
			copies[p], mirrored[k] = true, true
			delete(alone, k)
		} else {
			alone[k] = p
		}
	}
	if n := len(mirrored); n < 2 || len(alone) > 0 && (n <= fewMirrored || len(alone) > n/10) {
		return nil
	}
	return copies
}
