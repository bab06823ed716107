package mrtable

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// memv does readv's and writev's work on a descriptor of /proc/PID/mem, whose file
// offset is the address: one preadv or pwritev for each remote piece. Each remote
// piece must hold a whole number of local ones.
func (p *Process) memv(call uintptr, local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	done := 0
	for _, r := range remote {
		k, sum := 0, 0
		for k < len(local) && sum < r.Len {
			sum += int(local[k].Len)
			k++
		}
		n, _, errno := unix.Syscall6(call, uintptr(p.mem), uintptr(unsafe.Pointer(&local[0])), uintptr(k), r.Base, 0, 0)
		switch {
		case errno != 0 && done > 0:
			return done, nil
		case errno != 0:
			return 0, processError(errno)
		case n == 0 && done == 0: // the address space has no user left
			return 0, ErrGone
		}
		done += int(n)
		if int(n) < r.Len {
			return done, nil
		}
		local = local[k:]
	}
	return done, nil
}
