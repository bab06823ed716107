package nic

import (
	"testing"
	"unsafe"
)

// What each step uses of an engine and of a device is in few cache lines, which begin eight bytes
// before the struct: allocations of this size have a header.
func TestStepUsesFewLines(t *testing.T) {
	const header, line = 8, 64
	lines := func(from, end uintptr) uintptr { return (header+end-1)/line - (header+from)/line + 1 }
	var e Engine
	if n := lines(0, unsafe.Offsetof(e.pool)+16); n > 3 {
		t.Errorf("engine: %d lines", n)
	}
	var d Device
	hot := lines(0, unsafe.Offsetof(d.congestion)+unsafe.Offsetof(d.congestion.line)) +
		lines(unsafe.Offsetof(d.drainedAt), unsafe.Offsetof(d.tx)+unsafe.Offsetof(d.tx.replies)+unsafe.Offsetof(d.tx.replies.frames))
	if hot > 6 {
		t.Errorf("device: %d lines", hot)
	}
}
