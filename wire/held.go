package wire

import (
	"math/bits"

	"softroce/packet"
)

// heldPackets are packets whose priority is paused (PFC), in their order for each priority, so that
// they do not keep those of other priorities waiting.
type heldPackets[T any] struct {
	packets    [packet.Priorities][]T
	priorities uint8 // that have packets, a bit for each
	n          int   // packets
}

func (h *heldPackets[T]) hold(priority uint8, p T) {
	h.packets[priority] = append(h.packets[priority], p)
	h.priorities |= 1 << priority
	h.n++
}

// first returns the oldest packets of a priority, up to most.
func (h *heldPackets[T]) first(priority, most int) []T {
	l := h.packets[priority]
	return l[:min(len(l), most)]
}

// remove removes the oldest n packets of a priority.
func (h *heldPackets[T]) remove(priority, n int) {
	l := h.packets[priority]
	kept := copy(l, l[n:])
	clear(l[kept:])
	h.packets[priority] = l[:kept]
	if h.n -= n; kept == 0 {
		h.priorities &^= 1 << priority
	}
}

// send sends the packets of the priorities in open, at most so many at a time. It reports whether
// the link took fewer than it was given.
func (h *heldPackets[T]) send(open uint8, most int, send func([]T) (int, error)) (congested bool, err error) {
	for open &= h.priorities; open != 0; open &= open - 1 {
		priority := bits.TrailingZeros8(open)
		for l := h.first(priority, most); len(l) > 0; l = h.first(priority, most) {
			n, err := send(l)
			h.remove(priority, n)
			if err != nil {
				return false, err
			}
			if n < len(l) {
				congested = true
				break
			}
		}
	}
	return congested, nil
}

// paused returns the priorities that have to wait: those of a link, and those of held packets.
func (h *heldPackets[T]) paused(inner Link) uint8 { return Paused(inner) | h.priorities }

// waits reports whether a packet of a path has to wait for a pause, or behind held packets.
func (h *heldPackets[T]) waits(inner Link, p *Path) bool {
	return h.paused(inner)>>p.SwitchPriority()&1 != 0
}
