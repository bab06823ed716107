//go:build !race

package mrtable

import "unsafe"

// storeTail stores v at p, which is aligned, after everything that was stored before it. An x86
// processor makes stores visible in their order, those of a string instruction before it included.
// An atomic store is a locked instruction, which waits until the whole payload is in the cache. The
// race detector only knows the order of atomic ones.
func storeTail(p unsafe.Pointer, v uint64) { *(*uint64)(p) = v }
