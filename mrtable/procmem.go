package mrtable

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// An address must fit in the offset of preadv.
const _ uintptr = 1 << 63

// memv implements readv and writev on a descriptor of /proc/PID/mem, whose file offset is the
// address. Adjacent remote pieces share a preadv or pwritev. The kernel processes local pieces in
// order, so the end of a message is still stored last. Each remote piece must consist of whole
// local ones.
func (p *Process) memv(call uintptr, local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	done := 0
	for len(remote) > 0 {
		addr, size := remote[0].Base, remote[0].Len
		remote = remote[1:]
		for len(remote) > 0 && remote[0].Base == addr+uintptr(size) {
			size += remote[0].Len
			remote = remote[1:]
		}
		k := countPieces(local, size)
		n, _, errno := unix.Syscall6(call,
			uintptr(p.mem), uintptr(unsafe.Pointer(&local[0])), uintptr(k), addr, 0, 0)
		switch {
		case errno != 0 && done > 0:
			return done, nil
		case errno != 0:
			return 0, processError(errno)
		case n == 0 && done == 0: // the address space is gone
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

// countPieces returns how many local pieces make up size bytes.
func countPieces(local []unix.Iovec, size int) (k int) {
	for k < len(local) && size > 0 {
		size -= int(local[k].Len)
		k++
	}
	return k
}
