package conversation

import (
	"slices"
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

// mirrorCopies returns the copies of packets that a mirror port made, none if it made none. Where
// the sender does not number its packets, one that it sent again, or that the network duplicated,
// may lie between a packet and its copy: the copy is the one whose delay is nearest to that of most
// copies.
func mirrorCopies(ps capture.Packets) map[*capture.Packet]bool {
	var keys []viewKey
	same := map[viewKey]capture.Packets{}
	for _, p := range ps {
		k := viewKey{p.ICRC(), p.DestQP, p.PSN, p.ID, anyInterface}
		if same[k] == nil {
			keys = append(keys, k)
		}
		same[k] = append(same[k], p)
	}
	delay := mirrorDelay(same)
	copies := map[*capture.Packet]bool{}
	mirrored, alone := 0, 0 // different packets with a copy, and without one
	for _, k := range keys {
		c := copiesOf(same[k], delay)
		if len(c) > 0 {
			mirrored++
		}
		if 2*len(c) < len(same[k]) {
			alone++
		}
		for _, p := range c {
			copies[p] = true
		}
	}
	if mirrored < 2 || alone > 0 && (mirrored <= fewMirrored || alone > mirrored/10) {
		return nil
	}
	return copies
}

// mirrorDelay returns the median time between a packet and its copy, of the packets that are there
// exactly twice.
func mirrorDelay(same map[viewKey]capture.Packets) time.Duration {
	var delays []time.Duration
	for _, ps := range same {
		if len(ps) == 2 {
			if d := ps[1].Time.Sub(ps[0].Time); d < maxMirrorDelay {
				delays = append(delays, d)
			}
		}
	}
	if len(delays) == 0 {
		return 0
	}
	slices.Sort(delays)
	return delays[len(delays)/2]
}

// copiesOf returns which of the same packets are copies, made after about a delay, of others. The
// copies have the order of their packets.
func copiesOf(same capture.Packets, delay time.Duration) (copies capture.Packets) {
	isCopy := make([]bool, len(same))
	next := 0 // after the copy of the packet before
	for i, p := range same {
		if isCopy[i] {
			continue
		}
		best, off := 0, time.Duration(0)
		for next = max(next, i+1); next < len(same); next++ {
			d := same[next].Time.Sub(p.Time)
			o := (d - delay).Abs()
			if d >= maxMirrorDelay || best != 0 && o >= off {
				break
			}
			best, off = next, o
		}
		if best != 0 {
			isCopy[best] = true
			copies = append(copies, same[best])
		}
	}
	return copies
}
