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
	recv := func(e *verbstest.Endpoint) {
		wc := make([]verbs.WC, 1)
		for {
			if k, err := e.CQ.Poll(wc); err != nil {
				b.Fatal(err)
			} else if k == 1 && wc[0].Opcode == verbs.WCRecv {
				return
			}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for _, e := range [][2]*verbstest.Endpoint{{x, y}, {y, x}} {
			e[1].PostRecv(verbs.RecvWR{SGList: e[1].SGE(0, 8)})
			e[0].PostSend(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: e[0].SGE(0, 8)})
			recv(e[1])
		}
	}
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
