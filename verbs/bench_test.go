package verbs_test

import (
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
