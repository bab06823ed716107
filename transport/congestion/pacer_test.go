package congestion

import (
	"math"
	"testing"
)

// Packets leave at the rate that is set, in bursts that are bounded, also if the rate changes from
// packet to packet.
func TestPacerKeepsRates(t *testing.T) {
	const size, burst = 1100, 20_000
	for _, rates := range [][]int64{{1e3}, {1e6}, {25e8}, {100e9}, {400e9}, {1e9, 10e9}} {
		var p Pacer
		now, first := int64(5e9), int64(5e9)
		took := 0. // seconds that the packets take at their rates
		for i := range 2000 {
			rate := rates[i%len(rates)]
			for {
				n, next := p.Allowance(now, rate, burst)
				if n > maxBurst {
					t.Fatalf("%d b/s: %d bytes at once", rate, n)
				}
				if n > 0 {
					break
				}
				if next <= now {
					t.Fatalf("%d b/s: at %d wait until %d", rate, now, next)
				}
				now = next
			}
			p.Sent(now, size, rate, burst)
			took += 8 * size / float64(rate)
		}
		elapsed := float64(now-first) / 1e9
		last := 8 * size / float64(rates[1999%len(rates)]) // the last packet has not been waited for
		if early := took - last - elapsed; early > 2*burst/1e9 || elapsed > took*1.001+burst/1e9 {
			t.Errorf("%v b/s: %g s for packets of %g s", rates, elapsed, took)
		}
	}
}

// A queue pair that was idle may send a burst, and not all that it has missed.
func TestPacerSavesOneBurst(t *testing.T) {
	const rate, burst = 10e9, 20_000
	var p Pacer
	p.Sent(0, 1500, rate, burst)
	n, _ := p.Allowance(math.MaxInt64/2, rate, burst)
	if want := 1 + int(2*burst*rate/8e9); n != want {
		t.Errorf("%d bytes after a long time, want %d", n, want)
	}
}
