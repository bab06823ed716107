package verbs_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// BenchmarkWrite keeps a queue of RDMA WRITEs full.
func BenchmarkWrite(b *testing.B) {
	for _, process := range []bool{false, true} {
		for _, size := range []int{8, 4096, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("process=%v/%d", process, size), func(b *testing.B) { benchmarkWrite(b, process, size) })
		}
	}
}

func benchmarkWrite(b *testing.B, process bool, size int) {
	m, n := verbstest.Pair(b)
	x, y := verbstest.EndpointConfig{BufSize: 1 << 20, Process: process}.Connect(b, m, n)
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, size),
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
	wc := make([]verbs.WC, 32)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for posted, done := 0, 0; done < b.N; {
		for posted < b.N && posted-done < 32 && x.PostSend(wr) == nil {
			posted++
		}
		k, err := x.CQ.Poll(wc)
		if err != nil {
			b.Fatal(err)
		}
		if k == 0 {
			runtime.Gosched()
		}
		for i := range k {
			if err := wc[i].Err(); err != nil {
				b.Fatal(err)
			}
		}
		done += k
	}
}

// BenchmarkRoundTrip sends 8 bytes in both directions; both sides poll.
func BenchmarkRoundTrip(b *testing.B) {
	m, n := verbstest.Pair(b)
	x, y := verbstest.ConnectedRC(b, m, n)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for _, e := range [][2]*verbstest.Endpoint{{x, y}, {y, x}} {
			postRecv8(e[1])
			postSend8(e[0])
			reapRecv(b, e[1], false)
		}
	}
}

// BenchmarkPingPong is BenchmarkRoundTrip with a goroutine for each side, which polls or waits.
// With the engine these are three threads.
func BenchmarkPingPong(b *testing.B) {
	for _, waits := range []bool{false, true} {
		b.Run(fmt.Sprintf("waits=%v", waits), func(b *testing.B) {
			m, n := verbstest.Pair(b)
			x, y := verbstest.ConnectedRC(b, m, n)
			postRecv8(x)
			postRecv8(y)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range b.N {
					if !reapRecv(b, y, waits) {
						return
					}
					postRecv8(y)
					postSend8(y)
				}
			}()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				postSend8(x)
				if !reapRecv(b, x, waits) {
					break
				}
				postRecv8(x)
			}
			<-done
		})
	}
}

func postRecv8(e *verbstest.Endpoint) { e.PostRecv(verbs.RecvWR{SGList: e.SGE(0, 8)}) }

func postSend8(e *verbstest.Endpoint) {
	e.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: e.SGE(0, 8)})
}

// reapRecv returns when a message has been received, or false after an error of either side.
func reapRecv(b *testing.B, e *verbstest.Endpoint, waits bool) bool {
	wc := make([]verbs.WC, 1)
	for !b.Failed() {
		k, err := e.CQ.Poll(wc)
		if k == 0 && err == nil && waits {
			err = e.CQ.Wait(b.Context())
		}
		if k == 1 {
			err = wc[0].Err()
		}
		if err != nil {
			b.Error(err)
		} else if k == 1 && wc[0].Opcode == verbs.WCRecv {
			return true
		}
	}
	return false
}

// BenchmarkControl measures control calls. Creations are measured together with the destruction of
// what they created.
func BenchmarkControl(b *testing.B) {
	f := verbstest.New(b)
	c := f.Open(0)
	e := verbstest.EndpointConfig{}.New(b, c)
	ctx := b.Context()
	memory := make([]byte, 1<<20)
	buffer, err := c.AllocBuffer(len(memory))
	if err != nil {
		b.Fatal(err)
	}
	to := verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: e.Info.GID, SGIDIndex: 1}}
	for _, bench := range []struct {
		name string
		call func() error
	}{
		{"QueryPort", func() error { _, err := c.QueryPort(ctx); return err }},
		{"GIDs", func() error { _, err := c.GIDs(ctx); return err }},
		{"CQ", func() error { return closed(c.CreateCQ(ctx, 64, nil)) }},
		{"QP", func() error {
			return closed(e.PD.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: e.CQ, RecvCQ: e.CQ,
				Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}}))
		}},
		{"CQ/4096", func() error { return closed(c.CreateCQ(ctx, 4096, nil)) }},
		{"MR/4KiB", func() error { return closed(e.PD.RegMR(ctx, memory[:4<<10], verbs.AccessLocalWrite)) }},
		{"MR/1MiB", func() error { return closed(e.PD.RegMR(ctx, memory, verbs.AccessLocalWrite)) }},
		{"MR/1MiB mapped", func() error { return closed(e.PD.RegMR(ctx, buffer.Bytes(), verbs.AccessLocalWrite)) }},
		{"AH", func() error { return closed(e.PD.CreateAH(ctx, to)) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("Open", func(b *testing.B) {
		for b.Loop() {
			c, err := verbs.Open(ctx, "nic0", verbs.WithSocket(f.Socket()))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.GIDs(ctx); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}

// closed closes an object that was created.
func closed[T interface{ Close(context.Context) error }](o T, err error) error {
	if err != nil {
		return err
	}
	return o.Close(context.Background())
}
