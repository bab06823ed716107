package release_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"softroce/internal/release"
)

// A thread that loads a word sees what was stored before it.
func TestStoresAreOrdered(t *testing.T) {
	const rounds = 1_000_000
	var words [3]struct {
		uint64
		short uint32
		_     [52]byte // each in a cache line of its own
	}
	go func() {
		for i := range uint64(rounds) {
			release.Store64(&words[0].uint64, i+1)
			release.Store32(&words[1].short, uint32(i+1))
			release.Store64(&words[2].uint64, i+1)
		}
	}()
	for third := uint64(0); third < rounds; {
		third = atomic.LoadUint64(&words[2].uint64)
		second := uint64(atomic.LoadUint32(&words[1].short))
		first := atomic.LoadUint64(&words[0].uint64)
		if first < second || second < third {
			t.Fatalf("stored %d, before it %d, and before that %d", third, second, first)
		}
	}
}

// A slot is read before it is released: the other side overwrites it at once.
func TestStoresFollowLoads(t *testing.T) {
	const rounds = 50_000
	var slot uint64
	var produced, consumed struct {
		uint32
		_ [60]byte
	}
	go func() {
		for i := uint32(0); i < rounds; {
			if atomic.LoadUint32(&consumed.uint32) != i {
				runtime.Gosched()
				continue
			}
			i++
			release.Store64(&slot, uint64(i))
			release.Store32(&produced.uint32, i)
		}
	}()
	for i := uint32(1); i <= rounds; {
		if atomic.LoadUint32(&produced.uint32) != i {
			runtime.Gosched()
			continue
		}
		got := atomic.LoadUint64(&slot)
		release.Store32(&consumed.uint32, i)
		if got != uint64(i) {
			t.Fatalf("read %d of round %d", got, i)
		}
		i++
	}
}
