package mrtable

import (
	"math/rand/v2"
	"os"
	"softroce/internal/ib"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
}

func addUint64(p *uint64, v uint64) { atomic.AddUint64(p, v) }

func loadUint64(b *byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(b))) }

// skipOrFail skips a test that this machine cannot run. It fails instead where every test must run.
func skipOrFail(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("cannot run: " + why)
	}
	t.Skip(why)
}

// hasProcessVM reports whether the system has process_vm_readv, which qemu-user lacks. Tests access
// the memory of processes through /proc/PID/mem there.
var hasProcessVM = sync.OnceValue(func() bool {
	_, err := unix.ProcessVMReadv(os.Getpid(), nil, nil, 0)
	return err != unix.ENOSYS
})

func unsafePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// read reads memory of either kind, after what is queued.
func (g *fixture) read(r *Region, addr uint64, n int) ([]byte, error) {
	if r == nil || r.InPlace() || n == 0 {
		b, err := g.io.Read(r, addr, n)
		if err == ErrNotMemory && n == 0 {
			return []byte{}, nil
		}
		return b, err
	}
	if err := g.io.QueueRead(&g.rd, r, addr, n); err != nil {
		return nil, err
	}
	g.io.Flush()
	if !g.rd.Done() || !g.rd.Of(r, addr) {
		g.t.Fatal("Flush did not carry out a read")
	}
	return g.rd.Bytes()
}

func (g *fixture) fetchAdd(r *Region, addr, add uint64) (uint64, error) {
	old, done, err := g.io.FetchAdd(g, 7, r, addr, add)
	return g.atomicResult(old, done, err)
}

func (g *fixture) compareSwap(r *Region, addr, compare, swap uint64) (uint64, error) {
	old, done, err := g.io.CompareSwap(g, 7, r, addr, compare, swap)
	return g.atomicResult(old, done, err)
}

// atomicResult returns the result of an operation, after what is queued.
func (g *fixture) atomicResult(old uint64, done bool, err error) (uint64, error) {
	if done || err != nil {
		return old, err
	}
	g.io.Flush()
	g.io.Results(func(tag any, id, original uint64) {
		if tag != g || id != 7 {
			g.t.Fatalf("result for tag %v, number %d", tag, id)
		}
		old, done = original, true
	})
	if done {
		return old, nil
	}
	for i, f := range g.io.failed {
		if f.tag == any(g) {
			g.io.failed = append(g.io.failed[:i], g.io.failed[i+1:]...)
			return 0, f.err
		}
	}
	g.t.Fatal("Flush did not carry out an atomic operation")
	return 0, nil
}

func (g *fixture) storeWord(r *Region, addr, v uint64) error {
	err := g.io.StoreWord(g, r, addr, v)
	g.io.Flush()
	return err
}

// The tests of single mappings need no sharing.

func MapFD(fd int, off, length uint64, a ib.Access) (Memory, error) {
	return new(Files).Map(fd, off, length, a)
}

func mapFD(fd int, off, length uint64, a ib.Access, strict bool) (Memory, error) {
	return new(Files).mapSealed(fd, off, length, a, strict)
}

func (p *Process) MapGuarded(fd int, off, length uint64, a ib.Access) (Memory, error) {
	return new(Files).MapGuarded(p, fd, off, length, a)
}
