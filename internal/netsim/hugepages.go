package netsim

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// heapOfNIC is about how much of the heap a NIC and its ports take, in bytes.
const heapOfNIC = 320 << 10

// useHugePages makes the kernel give the NICs huge pages, if it does so on request: what a step
// uses of a NIC is in some twenty pages, and those of a thousand NICs are more than the processor's
// TLB has. The runtime has no call for that. So a block as large as the heap will be is advised and
// released, and what is allocated next takes its place.
func useHugePages(nodes int) {
	if nodes < minHugeNodes {
		return
	}
	block := make([]byte, nodes*heapOfNIC)
	unix.Madvise(block, unix.MADV_HUGEPAGE) // fails on a kernel without them
	runtime.KeepAlive(block)
	runtime.GC()
}

// minHugeNodes is from how many NICs and switches on it pays.
const minHugeNodes = 256
