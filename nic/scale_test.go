package nic_test

import (
	"fmt"
	"runtime"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// manyPairs is a number of connected pairs of queue pairs that makes other memory of the NIC
// negligible.
const manyPairs = 500

// connectMany connects n queue pairs of x with as many of y. Queue pairs share the clients' CQs.
func connectMany(x, y *client, n int, caps nic.Caps) (a, b []*queue) {
	for range n {
		p, q := connected(x, y, caps)
		a, b = append(a, p), append(b, q)
	}
	return a, b
}

// useEach sends several messages of each kind over each pair, and waits until they are complete.
func (w *testFabric) useEach(x, y *client, a, b []*queue) {
	sge := x.sge(0, 4096)
	for i, p := range a {
		for k := range 16 {
			b[i].recv(uint64(k), y.sge(0, 4096))
			for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead} {
				p.post(transport.SendWR{Opcode: op, RKey: y.mr.RKey(), SGEs: sge})
			}
		}
		w.step()
		for _, c := range append(x.cq.PollAll(), y.cq.PollAll()...) {
			if c.Status != ib.WCSuccess {
				w.t.Fatalf("completion %+v", c)
			}
		}
	}
	w.run(1e9) // until no timer is left
}

// heapOf returns how many bytes of the heap the queue pairs of a NIC use, beside their rings.
func heapOf(all ...[]*queue) (bytes int) {
	before := heapInUse()
	queues := 0
	for _, l := range all {
		for _, q := range l {
			check(q.t, q.Destroy())
			q.QP.QP = nil // the rings remain
			queues++
		}
	}
	after := heapInUse()
	runtime.KeepAlive(all)
	return int(before-after) / queues
}

// heapInUse returns the bytes of reachable objects. Pools are empty after two collections.
func heapInUse() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// maxIdleHeap is the most that an idle connected queue pair should use of the heap, in bytes,
// beside its rings.
const maxIdleHeap = 4 << 10

func TestIdleQueuePairUsesLittleMemory(t *testing.T) {
	for _, use := range uses {
		t.Run(string(use), func(t *testing.T) {
			if n := idleHeap(t, use); n > maxIdleHeap {
				t.Errorf("an idle queue pair uses %d bytes of the heap, want at most %d", n, maxIdleHeap)
			}
		})
	}
}

// A use is what queue pairs did before they became idle.
type use string

const (
	unused     use = "unused"
	usedMapped use = "used with mapped memory"
	usedCopied use = "used with copied memory"
)

var uses = []use{unused, usedMapped, usedCopied}

func idleHeap(t testing.TB, did use) int {
	w := newTestFabric(t)
	x, y := w.client(w.nic(1)), w.client(w.nic(2))
	if did == usedCopied {
		x.useCopiedMemory()
		y.useCopiedMemory()
	}
	a, b := connectMany(x, y, manyPairs, smallCaps)
	if did != unused {
		w.useEach(x, y, a, b)
		w.useEach(y, x, b, a)
	}
	return heapOf(a, b)
}

// A doorbell is seen whatever its number: the page has many cache lines of them.
func TestDoorbellsOfManyQueuePairs(t *testing.T) {
	w := newTestFabric(t)
	x, y := w.client(w.nic(1)), w.client(w.nic(2))
	a, _ := connectMany(x, y, 1100, oneWR)
	for _, i := range []int{0, 63, 64, 511, 512, 1023, 1024, 1099} {
		a[i].post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		w.step()
		x.want(uint64(i), ib.WCSuccess, ib.WCRDMAWrite)
	}
}

// BenchmarkIdleHeap reports the bytes of the heap for an idle connected queue pair beside its
// rings, before and after it was used.
func BenchmarkIdleHeap(b *testing.B) {
	for _, use := range uses {
		b.Run(string(use), func(b *testing.B) {
			var n int
			for b.Loop() {
				n = idleHeap(b, use)
			}
			b.ReportMetric(float64(n), "B/QP")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkIdleStep measures a step of an engine whose queue pairs have nothing to do.
func BenchmarkIdleStep(b *testing.B) {
	for _, n := range []int{1, 1000, 8000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newTestFabric(b)
			x, y := w.client(w.nic(1)), w.client(w.nic(2))
			connectMany(x, y, n, oneWR)
			for b.Loop() {
				w.now++
				w.engine.Step(w.now)
			}
		})
	}
}

// BenchmarkRoundRobin writes 4 KiB over n queue pairs in turn, with a number of work requests
// outstanding on all of them together, or on each.
func BenchmarkRoundRobin(b *testing.B) {
	for _, c := range []struct {
		depth int
		each  bool
	}{{64, false}, {64, true}, {1, true}} {
		for _, n := range []int{1, 1000, 8000} {
			b.Run(fmt.Sprintf("depth=%d/each=%v/%d", c.depth, c.each, n), func(b *testing.B) { roundRobin(b, n, c.depth, c.each) })
		}
	}
}

func roundRobin(b *testing.B, n, depth int, each bool) {
	const size = 4096
	w := newTestFabric(b)
	x, y := w.client(w.nic(1)), w.client(w.nic(2))
	caps := nic.Caps{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	limit := depth
	if each {
		limit = n * depth
	}
	cq := x.newCQ(limit)
	var queues []*queue
	for range n {
		p := x.create(nic.QPInit{Type: ib.QPTypeRC, PD: x.pd, SendCQ: cq.CQ, RecvCQ: cq.CQ, Caps: caps})
		q := y.qp(caps)
		p.connect(4096, q)
		q.connect(4096, p)
		queues = append(queues, p)
	}
	wr := transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, size)}
	b.SetBytes(size)
	b.ReportAllocs()
	next, posted, done := 0, 0, 0
	round := func() {
		for posted < limit {
			q := queues[next%n]
			if q.SendRoom() == 0 {
				break
			}
			q.post(wr)
			next++
			posted++
		}
		w.now++
		w.engine.Step(w.now)
		for {
			c, ok := cq.Poll()
			if !ok {
				break
			}
			if c.Status != ib.WCSuccess {
				b.Fatalf("completion %+v", c)
			}
			done++
		}
	}
	for next < 2*n { // until every queue pair has been used
		round()
		posted, done = posted-done, 0
	}
	for b.Loop() {
		for done == 0 {
			round()
		}
		posted, done = posted-1, done-1
	}
}
