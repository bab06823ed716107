package mrtable

import (
	"fmt"
	"hash/crc32"
	"testing"

	"softroce/internal/ib"
)

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for name, backing := range backings(t) {
		g := newFixture(t)
		b := bytesOf(make([]uint64, 1<<16))
		r := g.region(backing(b), 0)
		p := make([]byte, 1024)
		report := func(any, error) {}
		for what, f := range map[string]func(){
			"write": func() {
				for m := range 20 {
					for i := range 4 {
						g.io.Write(g, r, uint64(m*8192+i*len(p)), p, i == 3)
					}
				}
				g.io.Flush()
				g.io.Failed(report)
				g.io.Epoch()
			},
			"read": func() {
				for i := range 16 {
					if _, err := g.read(r, uint64(i), 4096); err != nil {
						t.Fatal(err)
					}
				}
				g.io.Epoch()
			},
			"atomics": func() {
				if _, err := g.fetchAdd(r, 8, 1); err != nil {
					t.Fatal(err)
				}
				if _, err := g.compareSwap(r, 16, 0, 0); err != nil {
					t.Fatal(err)
				}
			},
			"failures": func() {
				g.io.Write(g, r, uint64(len(b)), p, true)
				g.io.Failed(report)
				if _, err := g.read(r, uint64(len(b)), 1); err != ErrBounds {
					t.Fatal(err)
				}
			},
			"lookup": func() {
				if _, err := g.table.Remote(g.pd, 0, r.RKey(), 5, 100, ib.AccessRemoteWrite); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if n := testing.AllocsPerRun(50, f); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, what, n)
			}
		}
	}
}

var sizes = []int{256, 4096, 65536, 1 << 20}

func bench(b *testing.B, f func(b *testing.B, g *fixture, r *Region, size int)) {
	memory := bytesOf(make([]uint64, 8<<20))
	for i := 0; i < len(memory); i += page {
		memory[i] = 1 // populates the page
	}
	for _, name := range []string{"mapped", "process", "proc_mem"} {
		backing := backings(b)[name]
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				g := newFixture(b)
				g.io = NewIO(4 << 20)
				r := g.region(backing(memory), 0)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				f(b, g, r, size)
			})
		}
	}
}

// at returns the address of the i-th access, spread over the region.
func at(i, size int) uint64 { return uint64(i*7919*64) % uint64(64<<20-size) }

func BenchmarkWrite(b *testing.B) {
	p := make([]byte, 1<<20)
	bench(b, func(b *testing.B, g *fixture, r *Region, size int) {
		for i := 0; b.Loop(); i++ {
			g.io.Write(g, r, at(i, size), p[:size], true)
			g.io.Flush()
		}
		g.wantFailures(nil)
	})
}

// A batch is the work of a typical engine step: sixteen messages.
func BenchmarkWriteBatch(b *testing.B) {
	p := make([]byte, 1<<20)
	bench(b, func(b *testing.B, g *fixture, r *Region, size int) {
		b.SetBytes(int64(16 * size))
		for i := 0; b.Loop(); i++ {
			for k := range 16 {
				g.io.Write(g, r, at(16*i+k, size), p[:size], true)
			}
			g.io.Flush()
		}
		g.wantFailures(nil)
	})
}

// The packets of a message, 4 KiB each, make up one remote piece and a tail.
func BenchmarkWritePackets(b *testing.B) {
	p := make([]byte, 1<<20)
	bench(b, func(b *testing.B, g *fixture, r *Region, size int) {
		for i := 0; b.Loop(); i++ {
			addr := at(i, size)
			for off := 0; off < size; off += 4096 {
				end := min(off+4096, size)
				g.io.Write(g, r, addr+uint64(off), p[off:end], end == size)
			}
			g.io.Flush()
		}
		g.wantFailures(nil)
	})
}

func BenchmarkRead(b *testing.B) {
	bench(b, func(b *testing.B, g *fixture, r *Region, size int) {
		for i := 0; b.Loop(); i++ {
			if _, err := g.read(r, at(i, size), size); err != nil {
				b.Fatal(err)
			}
			g.io.Epoch()
		}
	})
}

func BenchmarkRemote(b *testing.B) {
	g := newFixture(b)
	var keys []uint32
	for range 1000 {
		keys = append(keys, g.region(HeapMemory(make([]byte, 64)), 0).RKey())
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := g.table.Remote(g.pd, 0, keys[i%len(keys)], 8, 32, ib.AccessRemoteWrite); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStoreLast writes messages of 4 KiB to one buffer, and in turn to those of many queue
// pairs, which are not in the processor's cache. Between two messages it computes the CRC of one,
// as a link does.
func BenchmarkStoreLast(b *testing.B) {
	const size = 4 << 10
	message := make([]byte, size)
	for _, buffers := range []int{1, 1000, 10_000} {
		memory := make([]byte, buffers*size)
		b.Run(fmt.Sprint(buffers), func(b *testing.B) {
			b.SetBytes(size)
			var barrier uint64
			for i := range b.N {
				at := i % buffers * size
				crc32.ChecksumIEEE(message)
				storeLast(memory[at:at+size], message, &barrier)
			}
		})
	}
}
