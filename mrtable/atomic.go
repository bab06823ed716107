package mrtable

import (
	"sync/atomic"
	"unsafe"

	"softroce/internal/ib"
)

// CompareSwap replaces the eight bytes at addr by swap if they equal compare, and returns their
// previous value. They are a number in native byte order. In mapped memory the operation is atomic
// also with respect to the client's CPUs; in another process's memory only with respect to other
// operations of this IO (IBV_ATOMIC_HCA). There it is queued, and done is false: Results reports
// the previous value with tag and id, or Failed an error with tag.
//
// In addition to the errors of Read it returns ErrAlign if addr, or its place in mapped memory, is
// not a multiple of 8.
func (io *IO) CompareSwap(tag any, id uint64, r *Region, addr, compare, swap uint64) (original uint64, done bool, err error) {
	word, err := io.word(r, addr)
	if err != nil {
		return 0, false, err
	}
	if word == nil {
		return 0, false, io.queueWord(opCompareSwap, tag, r, addr, operands{id: id, compare: compare, word: swap})
	}
	for {
		original = atomic.LoadUint64(word)
		if original != compare || atomic.CompareAndSwapUint64(word, compare, swap) {
			return original, true, nil
		}
	}
}

// FetchAdd adds to the eight bytes at addr, modulo 2^64, and returns their previous value. See
// CompareSwap.
func (io *IO) FetchAdd(tag any, id uint64, r *Region, addr, add uint64) (original uint64, done bool, err error) {
	word, err := io.word(r, addr)
	if err != nil {
		return 0, false, err
	}
	if word == nil {
		return 0, false, io.queueWord(opFetchAdd, tag, r, addr, operands{id: id, word: add})
	}
	return atomic.AddUint64(word, add) - add, true, nil
}

// StoreWord stores a native eight-byte number at addr, after all earlier writes. In mapped memory
// it is a single store; otherwise it is queued like Write. See CompareSwap.
func (io *IO) StoreWord(tag any, r *Region, addr, v uint64) error {
	word, err := io.word(r, addr)
	if err != nil {
		return err
	}
	if word == nil {
		return io.queueWord(opStoreWord, tag, r, addr, operands{word: v})
	}
	atomic.StoreUint64(word, v)
	return nil
}

func (io *IO) queueWord(kind opKind, tag any, r *Region, addr uint64, v operands) error {
	if len(io.failed) > 0 && io.hasFailed(tag) {
		return nil
	}
	b := io.queue(io.clientOf(r))
	if b == nil {
		return ErrWait
	}
	b.ops = append(b.ops, op{kind: kind, tag: tag, region: r, addr: r.process.base + r.offset(addr), operands: b.operands(v)})
	return nil
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

func aligned(b []byte) bool { return uintptr(unsafe.Pointer(&b[0]))%8 == 0 }
