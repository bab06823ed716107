package mrtable

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// An address must fit in preadv's offset.
const _ uintptr = 1 << 63

// memv does readv's and writev's work on a descriptor of /proc/PID/mem, whose file offset
// is the address. Adjacent remote pieces share a preadv or pwritev: the kernel goes through
// the local pieces one by one, so the end of a message still comes last. Each remote piece
// must hold a whole number of local ones.
func (p *Process) memv(call uintptr, local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	done := 0
	for len(remote) > 0 {
		addr, size := remote[0].Base, remote[0].Len
		remote = remote[1:]
		for len(remote) > 0 && remote[0].Base == addr+uintptr(size) {
			size += remote[0].Len
			remote = remote[1:]
		}
		k := count(local, size)
		n, _, errno := unix.Syscall6(call,
			uintptr(p.mem), uintptr(unsafe.Pointer(&local[0])), uintptr(k), addr, 0, 0)
		switch {
		case errno != 0 && done > 0:
			return done, nil
		case errno != 0:
			return 0, processError(errno)
		case n == 0 && done == 0: // the address space has no user left
			return 0, ErrGone
		}
		done += int(n)
		if int(n) < size {
			return done, nil
		}
		local = local[k:]
	}
	return done, nil
}

// count says how many of the local pieces make up size bytes.
func count(local []unix.Iovec, size int) (k int) {
	for k < len(local) && size > 0 {
		size -= int(local[k].Len)
		k++
	}
	return k
}
