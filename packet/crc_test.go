package packet

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestUpdateAgreesWithHashCRC32(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 9100)
	for i := range buf {
		buf[i] = byte(rnd.Uint32())
	}
	check := func(at, n int) {
		c, b := rnd.Uint32(), buf[at:at+n]
		if got, want := update(c, b), ^crc32.Update(^c, crc32.IEEETable, b); got != want {
			t.Errorf("%d bytes from byte %d: %#x, want %#x", n, at, got, want)
		}
	}
	for n := range 1100 {
		check(n%32, n)
	}
	for at := range 64 {
		check(at, 4096)
		check(at, 9000+at%37)
	}
}

func BenchmarkUpdate(b *testing.B) {
	buf := make([]byte, 4096)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		update(0, buf)
	}
}
