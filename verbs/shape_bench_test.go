package verbs_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"softroce/internal/fabrictest"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// shapedContexts opens two NICs whose ports have a rate or a delay.
func shapedContexts(b *testing.B, s wire.Shape) (x, y *verbs.Context) {
	f := fabrictest.New(b, fabrictest.Config{WrapLink: func(_ int, inner wire.Link) wire.Link { return wire.NewShapedLink(inner, s) }})
	open := func(device string) *verbs.Context {
		c, err := verbs.Open(b.Context(), device, verbs.WithSocket(f.Socket()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		return c
	}
	return open("nic0"), open("nic1")
}

// BenchmarkRate keeps queues of RDMA WRITEs full. x-rate is what they carry in real time, with the
// headers, as a part of the rate of the ports.
func BenchmarkRate(b *testing.B) {
	const (
		size   = 64 << 10
		depth  = 64 // of all queue pairs together
		header = packet.EthernetLen + 20 + 8 + 12 + packet.ICRCLen
	)
	for _, rate := range []int64{1e9, 10e9, 25e9} {
		for _, qps := range []int{1, 2} {
			b.Run(fmt.Sprintf("%dG/QPs=%d", rate/1e9, qps), func(b *testing.B) {
				m, n := shapedContexts(b, wire.Shape{Rate: rate})
				var senders []*verbstest.Endpoint
				var wrs []verbs.SendWR
				for range qps {
					x, y := verbstest.EndpointConfig{BufSize: size}.Connect(b, m, n)
					senders = append(senders, x)
					wrs = append(wrs, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
						SGList: x.SGE(0, size), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
				}
				wc := make([]verbs.WC, depth)
				// transfer returns how long some WRITEs take while the queues are full.
				transfer := func(messages int) (took time.Duration) {
					start := time.Now()
					for i := range depth {
						if err := senders[i%qps].PostSend(wrs[i%qps]); err != nil {
							b.Fatal(err)
						}
					}
					for done := 0; done < messages+depth; {
						for i, x := range senders {
							k, err := x.CQ.Poll(wc)
							if err != nil {
								b.Fatal(err)
							}
							for j := range k {
								if err := wc[j].Err(); err != nil {
									b.Fatal(err)
								}
								if done++; done <= messages {
									if err := x.PostSend(wrs[i]); err != nil {
										b.Fatal(err)
									}
								}
								if done == messages {
									took = time.Since(start)
								}
							}
							if k == 0 {
								runtime.Gosched()
							}
						}
					}
					return took
				}
				transfer(depth)
				b.SetBytes(size)
				b.ResetTimer()
				took := transfer(b.N)
				const bits = size * 8 * (4096 + header) / 4096
				b.ReportMetric(float64(b.N)*bits/took.Seconds()/float64(rate), "x-rate")
			})
		}
	}
}

// BenchmarkDelay sends a message and waits for its acknowledgement. x-delays is the median of the
// round trips as a multiple of the delays that they pass, two in each direction.
func BenchmarkDelay(b *testing.B) {
	for _, delay := range []time.Duration{10 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, time.Millisecond} {
		b.Run(delay.String(), func(b *testing.B) {
			m, n := shapedContexts(b, wire.Shape{Delay: delay})
			x, y := verbstest.ConnectedRC(b, m, n)
			wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
			var took []time.Duration
			wc := make([]verbs.WC, 1)
			for b.Loop() {
				start := time.Now()
				if err := x.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				for k := 0; k == 0; {
					var err error
					if k, err = x.CQ.Poll(wc); err != nil || k > 0 && wc[0].Err() != nil {
						b.Fatal(err, wc[0].Err())
					}
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/float64(4*delay), "x-delays")
		})
	}
}
