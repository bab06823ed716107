package prefetch_test

import (
	"testing"
	"unsafe"

	"softroce/internal/prefetch"
)

// A prefetch beyond what is mapped does nothing.
func TestAnyAddressMayBePrefetched(t *testing.T) {
	x := new([prefetch.LineSize]byte)
	prefetch.Lines(nil, 1)
	prefetch.Lines(unsafe.Pointer(x), 1<<20)
}

// BenchmarkLines prefetches what is in the cache.
func BenchmarkLines(b *testing.B) {
	x := new([16 * prefetch.LineSize]byte)
	for b.Loop() {
		prefetch.Lines(unsafe.Pointer(x), 16)
	}
}
