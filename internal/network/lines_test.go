package network

import (
	"testing"
	"unsafe"
)

// What a frame needs of a NIC is in a cache line, and nodes have whole ones.
func TestFrameUsesOneLineOfNIC(t *testing.T) {
	var k node
	if n := unsafe.Offsetof(k.used); n > 64 {
		t.Errorf("%d bytes", n)
	}
	if n := unsafe.Sizeof(k); n%64 != 0 {
		t.Errorf("a node has %d bytes", n)
	}
}
