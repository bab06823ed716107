package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processVM measures process_vm_readv on one processor: the least that a NIC of another process
// does for a message whose memory it cannot map. The process reads its own memory, which the kernel
// treats as that of any other.
func processVM(size int) *measurement {
	return &measurement{
		name: fmt.Sprintf("process_vm_readv %s, one core", bytesOf(size)), unit: gbps,
		run: func(ctx context.Context, b *bench, _ int) (sample, error) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			from, to := make([]byte, size), make([]byte, size)
			for i := range from {
				from[i] = byte(i)
			}
			local := []unix.Iovec{{Base: &to[0]}}
			local[0].SetLen(size)
			remote := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&from[0])), Len: size}}
			const between = 256 // calls for each look at the clock
			calls := 0
			start := time.Now()
			for time.Since(start) < b.runTime {
				for range between {
					if n, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); n != size {
						return sample{}, fmt.Errorf("process_vm_readv: %d bytes, %w", n, err)
					}
				}
				calls += between
			}
			return sample{value: float64(calls) * float64(size) * 8 / time.Since(start).Seconds() / 1e9}, nil
		},
	}
}
