package sim

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"softroce/packet"
)

var (
	seeds  = flag.Int("sim.seeds", 200, "how many seeds TestSeeds runs")
	first  = flag.Uint64("sim.first", 1, "the first of them")
	single = flag.Uint64("sim.seed", 0, "run this seed alone")
)

// TestSeeds runs many seeds. A seed that fails is named with the command that repeats it.
func TestSeeds(t *testing.T) {
	from, n := *first, *seeds
	if *single != 0 {
		from, n = *single, 1
	}
	var next, failed, frames, qps, overflows, said, heard atomic.Uint64
	var work sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		work.Go(func() {
			for i := next.Add(1); i <= uint64(n); i = next.Add(1) {
				seed := from + i - 1
				r, err := run(seed)
				if err != nil {
					t.Errorf("seed %d: %v\n  repeat it with: go test ./internal/sim -run TestSeeds -sim.seed=%d", seed, err, seed)
					continue
				}
				frames.Add(r.Frames)
				failed.Add(uint64(r.Failed))
				qps.Add(uint64(2 * r.Profile.Pairs))
				overflows.Add(uint64(r.Overflows))
				said.Add(uint64(r.Said))
				heard.Add(uint64(r.Heard))
			}
		})
	}
	work.Wait()
	t.Logf("%d seeds: %d frames, %d of %d queue pairs ended in error, %d completion queues overflowed, %d unreliable messages of %d arrived",
		n, frames.Load(), failed.Load(), qps.Load(), overflows.Load(), heard.Load(), said.Load())
}

// run is Run, and for some seeds Run again, to see the same.
func run(seed uint64) (r *Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			buf := make([]byte, 8192)
			err = fmt.Errorf("invariant 8: panic: %v\n%s", p, buf[:runtime.Stack(buf, false)])
		}
	}()
	r, err = Run(seed)
	if err != nil || seed%16 != 0 {
		return r, err
	}
	again, err := Run(seed)
	if err == nil && again.Hash != r.Hash {
		err = fmt.Errorf("invariant 6: two runs differ: %#x and %#x", r.Hash, again.Hash)
	}
	return r, err
}

// tame is p with nothing in it that ends a queue pair.
func (p Profile) tame() Profile {
	p.RetryCount, p.RNRRetry, p.Absence, p.Incidents, p.SmallCQ = 7, 7, 0, 0, false
	return p
}

func TestAPerfectNetworkNeedsNoRecovery(t *testing.T) {
	for seed := range uint64(20) {
		p := ProfileOf(seed)
		p.Loss, p.Duplicate, p.Reorder, p.Corrupt, p.Delay, p.Errors, p.LateRecv = 0, 0, 0, 0, 0, 0, 0
		p = p.tame()
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, c := range r.Counters {
			if c.LocalACKTimeout+c.PacketSeqErr+c.ImpliedNAK > 0 || r.Failed > 0 {
				t.Errorf("seed %d: %d timeouts, %d sequence NAKs, %d implied, %d QPs failed", seed, c.LocalACKTimeout, c.PacketSeqErr, c.ImpliedNAK, r.Failed)
			}
		}
	}
}

func TestModerateLossFailsNoQueuePair(t *testing.T) {
	for seed := range uint64(50) {
		p := ProfileOf(seed)
		p.Loss, p.Duplicate, p.Reorder, p.Corrupt, p.Errors = 0.02, 0.02, 0.02, 0.01, 0
		p = p.tame()
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Failed > 0 {
			t.Errorf("seed %d: %d queue pairs ended in error at 2 %% loss", seed, r.Failed)
		}
	}
}

// TestWindowsAreOpenedAndShut: the runs do what pane.go says.
func TestWindowsAreOpenedAndShut(t *testing.T) {
	var returned, refused uint64
	for seed := range uint64(30) {
		p := ProfileOf(seed)
		p.Windows, p.Errors, p.XRC = true, 0.03, 0
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, c := range r.Counters {
			returned += c.RxOpcode[packet.SendOnlyInv] + c.RxOpcode[packet.SendLastInv]
			refused += c.RespRemoteAccess
		}
	}
	if returned < 100 || refused < 10 {
		t.Errorf("%d windows were given back, %d requests refused", returned, refused)
	}
}

// TestXRCTakesPart: the runs have XRC traffic, and its errors.
func TestXRCTakesPart(t *testing.T) {
	var sent, answered, failed uint64
	for seed := range uint64(30) {
		p := ProfileOf(seed)
		p.XRC, p.Errors = p.Pairs, 0.03
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		failed += uint64(r.Failed)
		for _, c := range r.Counters {
			for op := range c.RxOpcode {
				if packet.Opcode(op).Service() == packet.XRC {
					if packet.Opcode(op).Info().Request {
						sent += c.RxOpcode[op]
					} else {
						answered += c.RxOpcode[op]
					}
				} else if packet.Opcode(op).Service() == packet.RC && c.RxOpcode[op] > 0 {
					t.Fatalf("seed %d: opcode %#x of RC", seed, op)
				}
			}
		}
	}
	if sent < 10_000 || answered < 1000 || failed < 5 {
		t.Errorf("%d requests, %d answers, %d queue pairs failed", sent, answered, failed)
	}
}

// TestACrowdKeepsTheInvariants: 200 NICs, 10,000 queue pairs.
func TestACrowdKeepsTheInvariants(t *testing.T) {
	p := Crowd()
	if p.NICs != 200 || p.QPs() != 10_000 {
		t.Fatalf("%d NICs and %d queue pairs", p.NICs, p.QPs())
	}
	r, err := RunProfile(1, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames, %d completions, %d of %d queue pairs ended in error, %d unreliable messages of %d arrived, %v of virtual time",
		r.Frames, r.Completions, r.Failed, p.QPs(), r.Heard, r.Said, r.Virtual)
	if r.Completions < p.QPs() {
		t.Errorf("%d completions", r.Completions)
	}
}
