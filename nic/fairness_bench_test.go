package nic_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// BenchmarkLatencyBesideHog measures how long a WRITE of 64 bytes takes, from post to completion,
// beside a client that keeps many queue pairs busy with long messages. It reports the median and
// the 99th percentile. They are meaningful only if the engine has a processor of its own:
//
//	go test ./nic -run xxx -bench LatencyBesideHog -benchtime 20000x
func BenchmarkLatencyBesideHog(b *testing.B) {
	b.Run("idle", func(b *testing.B) {
		latencyBeside(b, onFabric, func(*testFabric, *nic.Device, *nic.Device) func() { return func() {} })
	})
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		for _, process := range []bool{false, true} {
			for _, n := range []int{64, 1024} {
				memory := "mapped"
				if process {
					memory = "process"
				}
				b.Run(fmt.Sprintf("%v/%s/%d", op, memory, n), func(b *testing.B) {
					latencyBeside(b, onFabric, func(w *testFabric, x, y *nic.Device) func() { return startHog(w, x, y, op, process, n) })
				})
			}
		}
	}
	for _, process := range []bool{false, true} {
		b.Run(fmt.Sprintf("packet/%v/process=%v/64", ib.WRRDMAWrite, process), func(b *testing.B) {
			skipWithoutRoot(b)
			onPacketLinks := func(w *testFabric) (x, y *nic.Device) { return w.wireNICs("packet") }
			latencyBeside(b, onPacketLinks, func(w *testFabric, x, y *nic.Device) func() {
				return startHog(w, x, y, ib.WRRDMAWrite, process, 64)
			})
		})
	}
}

func onFabric(w *testFabric) (x, y *nic.Device) { return w.nic(1), w.nic(2) }

const hogMessage = 64 << 20

// startHog keeps n queue pairs between two NICs busy. The function that it returns posts again what
// is complete.
func startHog(w *testFabric, x, y *nic.Device, op ib.WROpcode, process bool, n int) func() {
	w.mem = hogMessage
	options := nic.ContextOptions{PID: 2}
	sides := [2]*client{w.clientOf(x, options), w.clientOf(y, options)}
	for _, c := range sides {
		fill(c.mem, 1)
		if process {
			c.useCopiedMemory()
		}
	}
	byQPN := map[uint32]*queue{}
	post := func(q *queue) {
		q.post(transport.SendWR{Opcode: op, RKey: sides[1].mr.RKey(), SGEs: q.sge(0, hogMessage)})
	}
	for range n {
		q, _ := connected(sides[0], sides[1], oneWR)
		byQPN[q.QPN()] = q
		post(q)
	}
	return func() {
		for _, c := range sides[0].cq.PollAll() {
			if c.Status != ib.WCSuccess {
				w.t.Errorf("completion %+v", c)
			}
			post(byQPN[c.QPN])
		}
	}
}

func latencyBeside(b *testing.B, devices func(*testFabric) (x, y *nic.Device), start func(w *testFabric, x, y *nic.Device) func()) {
	engine, err := nic.NewEngine(nic.EngineConfig{Seed: 1})
	check(b, err)
	w := &testFabric{t: b, engine: engine, fabric: wire.NewFabric(), mem: 4096}
	x, y := devices(w)
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	check(b, err)
	defer unix.Close(bell)
	v, peer := connected(w.clientOf(x, nic.ContextOptions{PID: 1, DoorbellFD: bell}), w.client(y), oneWR)
	repost := start(w, x, y)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- engine.Run(ctx) }()
	defer func() {
		cancel()
		check(b, <-done)
		check(b, engine.Close())
	}()
	took := make([]time.Duration, 0, b.N)
	ping := func() time.Duration {
		t := time.Now()
		v.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: v.sge(0, 64)})
		if atomic.LoadUint32(nictest.Word(v.DoorbellPage, abi.DoorbellAsleep)) != 0 {
			unix.Write(bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
		for {
			if c, ok := v.cq.Poll(); ok {
				if c.Status != ib.WCSuccess {
					b.Fatalf("completion %+v", c)
				}
				return time.Since(t)
			}
		}
	}
	for range 1000 {
		ping()
	}
	b.ResetTimer()
	for range b.N {
		took = append(took, ping())
		repost()
		for pause := time.Now(); time.Since(pause) < 20*time.Microsecond; { // not in step with the engine
		}
	}
	b.StopTimer()
	slices.Sort(took)
	for _, m := range []struct {
		name string
		at   int
	}{{"p50-µs", b.N / 2}, {"p99-µs", b.N * 99 / 100}, {"max-µs", b.N - 1}} {
		b.ReportMetric(float64(took[m.at])/1e3, m.name)
	}
	b.ReportMetric(0, "ns/op")
}
