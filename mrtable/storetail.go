//go:build !amd64 || race

package mrtable

import (
	"sync/atomic"
	"unsafe"
)

// storeTail stores v at p, which is aligned, after everything that was stored before it.
func storeTail(p unsafe.Pointer, v uint64) { atomic.StoreUint64((*uint64)(p), v) }
