package wire

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkLink moves packets of one connection from one namespace to another, as the run of
// packets of a long message; BenchmarkPackets moves packets of many, so that no two are alike and
// become a super-packet. They are gathered from a buffer, their ICRC is computed and checked, and
// they are copied to a buffer. The sender keeps at most a window in flight, as RC does. CPU is that
// of both ends.
func BenchmarkLink(b *testing.B) {
	eachLinkAndSize(b, []int{4096}, func(b *testing.B, l *vethPair, tx, rx Link, v6 bool, size int) {
		p := l.a.path(l.b, v6)
		benchmarkLink(b, tx, rx, frames(p, 256, size))
	})
}

func BenchmarkPackets(b *testing.B) {
	eachLinkAndSize(b, []int{64, 1024}, func(b *testing.B, l *vethPair, tx, rx Link, v6 bool, size int) {
		benchmarkLink(b, tx, rx, packets(l.a, l.b, v6, 256, size))
	})
}

// BenchmarkPacketAtATime is the yardstick of BenchmarkPackets: a system call for each packet that
// is sent, and one for each that is received.
func BenchmarkPacketAtATime(b *testing.B) {
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := newVethPair(b)
			benchmarkLink(b, l.a.packetLink(), l.b.packetLink(), packets(l.a, l.b, false, 1, size))
		})
	}
}

// packets returns n packets of as many connections.
func packets(from, to *netnsHost, v6 bool, n, size int) (batch []TxFrame) {
	for i := range n {
		p := from.path(to, v6)
		p.SrcPort += uint16(i)
		batch = append(batch, frames(p, 1, size)...)
	}
	return batch
}

// eachLinkAndSize runs a benchmark for each kind of link, the same at both ends.
func eachLinkAndSize(b *testing.B, sizes []int, run func(b *testing.B, l *vethPair, tx, rx Link, v6 bool, size int)) {
	for _, c := range []struct {
		name string
		open func(*netnsHost) Link
	}{
		{"packet", func(s *netnsHost) Link { return s.packetLink() }},
		{"udp", func(s *netnsHost) Link { return s.udpLink() }},
		{"xdp", func(s *netnsHost) Link { return s.xdpLink() }},
	} {
		for _, size := range sizes {
			for _, v6 := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/%s", c.name, size, family(v6)), func(b *testing.B) {
					l := newVethPair(b)
					run(b, l, c.open(l.a), c.open(l.b), v6, size)
				})
			}
		}
	}
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

func benchmarkLink(b *testing.B, tx, rx Link, batch []TxFrame) {
	const (
		window = 1024 // packets
		late   = 20 * time.Millisecond
		spin   = 2000 // empty Receives before the receiver sleeps, as an engine does
	)
	size := batch[0].Len
	var received, damaged atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		got := make([]RxFrame, len(batch))
		region := make([]byte, 1<<20)
		idle := 0
		var poll []unix.PollFd
		for {
			n, err := rx.Receive(0, got)
			if err != nil {
				b.Error(err)
				return
			}
			for i := range got[:n] {
				if got[i].BadICRC {
					damaged.Add(1)
				}
				copy(region[i*size%len(region):], got[i].Head[12:])
			}
			received.Add(int64(n))
			if n == 0 {
				select {
				case <-stop:
					return
				default:
					if idle++; idle > spin {
						poll = rx.AppendFDs(poll[:0])
						unix.Poll(poll, 1)
						idle = 0
					}
				}
			}
		}
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var before, after unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
	b.ResetTimer()
	sent, lost := 0, 0 // a veth interface drops packets if it has no processor for a moment
	underWay := func() int { return sent - lost - int(received.Load()) }
	wait := func(most int) {
		last, since := underWay(), time.Now()
		for n := last; n > most; n = underWay() {
			if n != last {
				last, since = n, time.Now()
			} else if time.Since(since) > late {
				lost += n
			}
		}
	}
	for sent < b.N {
		wait(window)
		n, err := tx.Send(0, batch[:min(len(batch), b.N-sent)])
		if err != nil {
			b.Fatal(err)
		}
		sent += n
	}
	wait(0)
	b.StopTimer()
	if c := rx.(Counted).Counters(); c.Drops != [NumDrops]uint64{} {
		b.Fatal("dropped", c)
	}
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &after))
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpackets/s")
	b.ReportMetric(float64(lost)/float64(b.N), "lost/op")
	if n := damaged.Load(); n > 0 {
		b.Errorf("%d of %d packets with a wrong ICRC", n, b.N)
	}
	close(stop)
	<-done
}
