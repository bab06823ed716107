package wire

import (
	"slices"
	"testing"
)

// Held packets leave in their order, those of open priorities only, as many as the link takes.
func TestHeldPacketsLeaveInOrder(t *testing.T) {
	var h heldPackets[int]
	for i := range 5 {
		h.hold(3, 30+i)
		h.hold(6, 60+i)
	}
	var sent []int
	room := 3
	send := func(l []int) (int, error) {
		n := min(room, len(l))
		room -= n
		sent = append(sent, l[:n]...)
		return n, nil
	}
	for _, step := range []struct {
		open      uint8
		room      int
		congested bool
		left      int
		sent      []int
	}{
		{1 << 6, 3, true, 7, []int{60, 61, 62}},
		{1 << 6, 9, false, 5, []int{63, 64}},
		{1 << 6, 9, false, 5, nil},
		{0xff, 0, true, 5, nil},
		{0xff, 9, false, 0, []int{30, 31, 32, 33, 34}},
	} {
		sent, room = nil, step.room
		congested, err := h.send(step.open, 2, send)
		if err != nil || congested != step.congested || h.n != step.left || !slices.Equal(sent, step.sent) {
			t.Errorf("%+v: congested %v, %d left, sent %v, error %v", step, congested, h.n, sent, err)
		}
	}
	if h.priorities != 0 {
		t.Errorf("priorities %#x have packets", h.priorities)
	}
}
