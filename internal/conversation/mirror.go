package conversation

import (
	"slices"
	"time"

	"softroce/capture"
)

// A mirror port that sees packets where they enter and where they leave a switch captures each
// twice. As with the views of several interfaces, the first is judged. Such a capture can be
// recognized: nearly every packet occurs an even number of times, each copy soon after its packet.
// Where a NIC retransmits, most packets still occur once.

const (
	// maxMirrorDelay bounds the time between a packet and its copy: a switch may queue the packet.
	maxMirrorDelay = time.Millisecond

	// fewMirrored is the number of different packets up to which all have to have a copy.
	fewMirrored = 8
)

// A Mirror finds the copies that a mirror port made. It reads one packet at a time, in bounded
// memory: a first pass over a capture finds whether there is a mirror port and how late its copies
// are, a second one distinguishes them from packets that were sent again. A nil Mirror finds none.
type Mirror struct {
	delay   time.Duration // between a packet and its copy; 0 in the first pass
	waiting map[viewKey][]*uncopied
	queue   []*uncopied // those that wait, and some whose copy has come, in the order of the capture
	delays  []time.Duration

	mirrored, alone int // packets with a copy, and without one
}

// An uncopied is a packet whose copy may follow.
type uncopied struct {
	viewKey
	at     time.Time
	copied bool
}

// maxDelays bounds the copies whose delays are remembered.
const maxDelays = 1 << 12

// NewMirror returns a Mirror for the first pass.
func NewMirror() *Mirror { return &Mirror{waiting: map[viewKey][]*uncopied{}} }

// IsCopy reports whether the next packet of the capture is the copy of one before. One that comes
// much sooner than most copies was sent again, or duplicated by the network.
func (m *Mirror) IsCopy(p *capture.Packet) bool {
	if m == nil {
		return false
	}
	m.expire(p.Time)
	u := &uncopied{viewKey: viewKey{p.ICRC(), p.DestQP, p.PSN, p.ID, p.Interface}, at: p.Time}
	if same := m.waiting[u.viewKey]; len(same) > 0 {
		if d := p.Time.Sub(same[0].at); 2*d >= m.delay && d < maxMirrorDelay {
			same[0].copied = true
			m.remove(same[0])
			m.mirrored++
			if len(m.delays) < maxDelays {
				m.delays = append(m.delays, d)
			}
			return true
		}
	}
	m.waiting[u.viewKey] = append(m.waiting[u.viewKey], u)
	m.queue = append(m.queue, u)
	return false
}

// expire counts the packets whose copy cannot follow any more.
func (m *Mirror) expire(now time.Time) {
	for len(m.queue) > 0 {
		u := m.queue[0]
		if !u.copied {
			if len(m.queue) < maxViews && now.Sub(u.at) < maxMirrorDelay {
				return
			}
			m.remove(u)
			m.alone++
		}
		m.queue = m.queue[1:]
	}
}

// remove removes the first packet that waits of those that are the same.
func (m *Mirror) remove(u *uncopied) {
	if same := m.waiting[u.viewKey]; len(same) > 1 {
		m.waiting[u.viewKey] = same[1:]
	} else {
		delete(m.waiting, u.viewKey)
	}
}

// SecondPass returns a Mirror for the second pass, nil if the first one has shown no mirror port.
func (m *Mirror) SecondPass() *Mirror {
	alone := m.alone
	for _, same := range m.waiting {
		alone += len(same)
	}
	if !mirrorShown(m.mirrored, alone) {
		return nil
	}
	second := NewMirror()
	second.delay = median(m.delays)
	return second
}

// mirrorShown reports whether a capture with so many packets that have a copy, and others that have
// none, is that of a mirror port.
func mirrorShown(mirrored, alone int) bool {
	return mirrored >= 2 && (alone == 0 || mirrored > fewMirrored && alone <= mirrored/10)
}

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
	if !mirrorShown(mirrored, alone) {
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
	return median(delays)
}

// median returns the median of delays, 0 if there are none.
func median(delays []time.Duration) time.Duration {
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
