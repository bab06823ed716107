package mrtable

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"softroce/internal/ib"
)

// CompareSwap replaces the eight bytes at addr by swap if they equal compare, and returns their
// previous value. They are a number in native byte order. In mapped memory the operation is atomic
// also with respect to the client's CPUs; in another process's memory only with respect to other
// operations of this IO (IBV_ATOMIC_HCA).
//
// In addition to the errors of Read it returns ErrAlign if addr, or its place in mapped memory, is
// not a multiple of 8.
func (io *IO) CompareSwap(r *Region, addr uint64, compare, swap uint64) (old uint64, err error) {
	word, err := io.word(r, addr)
	if err != nil {
		return 0, err
	}
	if word != nil {
		for {
			old = atomic.LoadUint64(word)
			if old != compare || atomic.CompareAndSwapUint64(word, compare, swap) {
				return old, nil
			}
		}
	}
	if old, err = io.load(r, addr); err != nil || old != compare {
		return old, err
	}
	return old, io.store(r, addr, swap)
}

// FetchAdd adds to the eight bytes at addr, modulo 2^64, and returns their previous value. See
// CompareSwap.
func (io *IO) FetchAdd(r *Region, addr uint64, add uint64) (old uint64, err error) {
	word, err := io.word(r, addr)
	if err != nil {
		return 0, err
	}
	if word != nil {
		return atomic.AddUint64(word, add) - add, nil
	}
	if old, err = io.load(r, addr); err != nil {
		return 0, err
	}
	return old, io.store(r, addr, old+add)
}

// StoreWord stores a native eight-byte number at addr, after all earlier writes. In mapped memory
// it is a single store. See CompareSwap.
func (io *IO) StoreWord(r *Region, addr uint64, v uint64) error {
	word, err := io.word(r, addr)
	if err != nil {
		return err
	}
	if word != nil {
		atomic.StoreUint64(word, v)
		return nil
	}
	q := io.queueOf(r)
	if len(q.pieces) > 0 {
		io.flush(q)
	}
	if err := io.checkAlive(q); err != nil {
		return err
	}
	return io.store(r, addr, v)
}

// word returns the address of the operand in mapped memory, or nil if the memory belongs to another
// process.
func (io *IO) word(r *Region, addr uint64) (*uint64, error) {
	if err := io.check(r, addr, 8, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if addr%8 != 0 {
		return nil, ErrAlign
	}
	if r.process != nil {
		return nil, nil
	}
	v, err := r.view(r.offset(addr), 8)
	if err != nil {
		return nil, err
	}
	if !aligned(v) {
		return nil, ErrAlign
	}
	return (*uint64)(unsafe.Pointer(&v[0])), nil
}

func (io *IO) load(r *Region, addr uint64) (uint64, error) {
	if err := io.readProcess(r, r.offset(addr), io.scratch[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(io.scratch[:]), nil
}

// store writes to another process's memory. It requires an empty queue and a checked process, as
// load leaves them.
func (io *IO) store(r *Region, addr uint64, v uint64) error {
	binary.NativeEndian.PutUint64(io.scratch[:], v)
	io.buildVectors([]piece{{addr: r.process.base + r.offset(addr), p: io.scratch[:]}})
	_, err := r.registered().queue.process.writev(io.local, io.remote)
	return err
}

// storeLast copies p to v of the same length and stores the final 8 bytes last, with a single store
// if they are aligned. The bytes before them are visible earlier: an atomic operation separates the
// two.
func (io *IO) storeLast(v, p []byte) {
	body := max(0, len(p)-tailLen)
	copy(v[:body], p)
	if tail := v[body:]; len(tail) == tailLen && aligned(tail) {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&tail[0])), binary.NativeEndian.Uint64(p[body:]))
		return
	}
	atomic.AddUint64(&io.barrier, 1)
	copy(v[body:], p[body:])
}

func aligned(b []byte) bool { return uintptr(unsafe.Pointer(&b[0]))%8 == 0 }
