package wire

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkLink moves packets of path MTU 4096 from one namespace to another. They are gathered
// from a buffer, their ICRC is computed and checked, and they are copied to a buffer. The sender
// keeps at most a window in flight, as RC does.
func BenchmarkLink(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		b.Run("packet/"+family(v6), func(b *testing.B) {
			l := newVethPair(b)
			benchmarkLink(b, l.a.packetLink(), l.b.packetLink(), l.a.path(l.b, v6))
		})
		b.Run("udp/"+family(v6), func(b *testing.B) {
			l := newVethPair(b)
			benchmarkLink(b, l.a.udpLink(), l.b.udpLink(), l.a.path(l.b, v6))
		})
	}
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

func benchmarkLink(b *testing.B, tx, rx Link, path *Path) {
	const (
		mtu, message = 4096, 256
		window       = 4 << 20 // bytes
		spin         = 2000    // empty Receives before the receiver sleeps, as an engine does
	)
	batch := frames(path, message, mtu)
	var received, lost atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		got := make([]RxFrame, 256)
		region := make([]byte, 1<<20)
		idle := 0
		poll := []unix.PollFd{{Fd: int32(rx.FD()), Events: unix.POLLIN}}
		for {
			n, err := rx.Receive(0, got)
			if err != nil {
				b.Error(err)
				return
			}
			for i := range got[:n] {
				if got[i].BadICRC {
					lost.Add(1)
				}
				copy(region[i*mtu%len(region):], got[i].Head[12:])
			}
			received.Add(int64(n))
			if n == 0 {
				select {
				case <-stop:
					return
				default:
					if idle++; idle > spin {
						unix.Poll(poll, 1)
						idle = 0
					}
				}
			}
		}
	}()
	b.SetBytes(mtu)
	b.ReportAllocs()
	b.ResetTimer()
	sent := 0
	for sent < b.N {
		if int64(sent)-received.Load() > window/mtu {
			continue
		}
		n, err := tx.Send(0, batch[:min(len(batch), b.N-sent)])
		if err != nil {
			b.Fatal(err)
		}
		sent += n
	}
	for received.Load() < int64(b.N) {
		if c := rx.(Counted).Counters(); c.Drops != [NumDrops]uint64{} {
			b.Fatal("dropped", c)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)*mtu*8/b.Elapsed().Seconds()/1e9, "Gb/s")
	if lost.Load() > 0 {
		b.Errorf("%d of %d packets with a wrong ICRC", lost.Load(), b.N)
	}
	close(stop)
	<-done
}
