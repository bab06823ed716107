package mrtable

import (
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"
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

func unsafePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
