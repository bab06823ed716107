//go:build !amd64 && !arm64

package prefetch

import "unsafe"

// Lines does nothing.
func Lines(unsafe.Pointer, uintptr) {}
