//go:build amd64 || arm64

package prefetch

import "unsafe"

// Lines starts to load n cache lines from p on; n must not be 0. It does not read: p may be any
// address.
//
//go:noescape
func Lines(p unsafe.Pointer, n uintptr)
