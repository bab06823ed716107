package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/transport"
)

// benchmark keeps depth requests outstanding and counts each as one operation.
func benchmark(b *testing.B, op ib.WROpcode, size, depth int) {
	x, y := pair(newTestFabric(b), 4096)
	benchmarkPair(b, x, y, op, size, depth)
}

func benchmarkCopied(b *testing.B, op ib.WROpcode, size, depth int) {
	x, y := pair(newTestFabric(b), 4096)
	x.useCopiedMemory()
	y.useCopiedMemory()
	benchmarkPair(b, x, y, op, size, depth)
}

func benchmarkPair(b *testing.B, x, y *queue, op ib.WROpcode, size, depth int) {
	b.SetBytes(int64(size))
	benchmarkSends(b, x, transport.SendWR{Opcode: op, RKey: y.mr.RKey(), SGEs: x.sge(0, size)}, depth, ib.WCSuccess, func() {})
}

// benchmarkSends keeps depth requests outstanding, whose completions have a status. receive is
// called before each step.
func benchmarkSends(b *testing.B, x *queue, req transport.SendWR, depth int, want ib.WCStatus, receive func()) {
	w := x.testFabric
	b.ReportAllocs()
	posted, done := 0, 0
	for b.Loop() {
		for done == 0 {
			for ; posted < depth; posted++ {
				x.store(&req)
			}
			x.Publish()
			receive()
			w.now++
			w.engine.Step(w.now)
			for {
				c, ok := x.cq.Poll()
				if !ok {
					break
				}
				if c.Status != want {
					b.Fatalf("completion %+v", c)
				}
				done++
			}
		}
		posted, done = posted-1, done-1
	}
}

func BenchmarkWrite1MiB(b *testing.B)  { benchmark(b, ib.WRRDMAWrite, 1<<20, 4) }
func BenchmarkWrite64KiB(b *testing.B) { benchmark(b, ib.WRRDMAWrite, 1<<16, 16) }
func BenchmarkWrite8B(b *testing.B)    { benchmark(b, ib.WRRDMAWrite, 8, 64) }

func BenchmarkSend8B(b *testing.B) {
	const depth = 64
	x, y := pair(newTestFabric(b), 4096)
	to := y.sge(0, 8)
	for range depth {
		y.recv(0, to)
	}
	b.SetBytes(8)
	benchmarkSends(b, x, transport.SendWR{Opcode: ib.WRSend, SGEs: x.sge(0, 8)}, depth, ib.WCSuccess, func() {
		for c, ok := y.cq.Poll(); ok; c, ok = y.cq.Poll() {
			if c.Status != ib.WCSuccess {
				b.Fatalf("completion %+v", c)
			}
			y.recv(0, to)
		}
	})
}

// These show the cost of steps that have little to do.
func BenchmarkWrite8BAlone(b *testing.B) { benchmark(b, ib.WRRDMAWrite, 8, 1) }
func BenchmarkRead8BAlone(b *testing.B)  { benchmark(b, ib.WRRDMARead, 8, 1) }

func BenchmarkRead1MiB(b *testing.B) { benchmark(b, ib.WRRDMARead, 1<<20, 4) }

// BenchmarkRings passes work requests through a send ring and completions through that of a CQ. The
// queue pair is in error, so the transport only flushes them.
func BenchmarkRings(b *testing.B) {
	x, _ := pair(newTestFabric(b), 4096)
	check(b, x.SetState(ib.QPSErr))
	benchmarkSends(b, x, transport.SendWR{Opcode: ib.WRRDMAWrite, SGEs: x.sge(0, 8)}, 64, ib.WCWRFlushErr, func() {})
}
