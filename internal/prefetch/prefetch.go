// Package prefetch has the processor load memory into its cache before it is needed, so that
// several loads overlap.
package prefetch

import "unsafe"

// LineSize is the number of bytes of a cache line.
const LineSize = 64

// Range starts to load the cache lines of size bytes at p; size must not be 0.
func Range(p unsafe.Pointer, size uintptr) {
	Lines(p, (uintptr(p)%LineSize+size+LineSize-1)/LineSize)
}
