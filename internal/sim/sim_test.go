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
	first  = flag.Uint64("sim.first", 1, "the first seed of TestSeeds")
	single = flag.Uint64("sim.seed", 0, "run only this seed")
)

// TestSeeds runs many seeds. The error of a failed seed contains the command that repeats it.
func TestSeeds(t *testing.T) {
	from, n := *first, *seeds
	if *single != 0 {
		from, n = *single, 1
	}
	var next, failed, frames, qps, overflows, sent, received, lossySent, lossyNeeded atomic.Uint64
	var switched, hops, marked, dropped, lost, pauses, deadlocks atomic.Uint64
	var blocked, elsewhere, bystander atomic.Uint64
	var work sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		work.Go(func() {
			for i := next.Add(1); i <= uint64(n); i = next.Add(1) {
				seed := from + i - 1
				r, err := run(seed)
				if err != nil {
					t.Errorf("seed %d: %v\n  reproduce it with: go test ./internal/sim -run TestSeeds -sim.seed=%d", seed, err, seed)
					continue
				}
				frames.Add(r.Frames)
				failed.Add(uint64(r.Failed))
				qps.Add(uint64(2 * r.Profile.Pairs))
				overflows.Add(uint64(r.Overflows))
				sent.Add(uint64(r.UnreliableSent))
				received.Add(uint64(r.UnreliableReceived))
				if r.Profile.Switches != nil {
					switched.Add(1)
					hops.Add(r.Hops)
					marked.Add(r.Ports.Marked)
					dropped.Add(r.Ports.Dropped)
					lost.Add(r.Ports.Lost)
					pauses.Add(r.Ports.PausesSent)
				}
				deadlocks.Add(uint64(len(r.Deadlocks)))
				blocked.Add(uint64(r.Blocked))
				elsewhere.Add(uint64(r.BlockedElsewhere))
				bystander.Add(uint64(r.Bystander))
				if r.Profile.OneWay {
					lossySent.Add(uint64(r.Sent))
					lossyNeeded.Add(uint64(r.Needed))
				}
			}
		})
	}
	work.Wait()
	if lossyNeeded.Load() > 2_000 && lossySent.Load() > 2*lossyNeeded.Load() {
		t.Errorf("invariant 10: at 1 %% loss %d packets were sent, %d are needed", lossySent.Load(), lossyNeeded.Load())
	}
	if n >= 200 && min(marked.Load(), dropped.Load(), lost.Load(), pauses.Load(), blocked.Load(), elsewhere.Load(), bystander.Load()) == 0 || frames.Load() == 0 || received.Load() == 0 && n > 20 || lossyNeeded.Load() <= 2_000 && n >= 200 {
		t.Errorf("%d seeds show nothing", n)
	}
	t.Logf("at 1 %% loss %d packets were sent, %d are needed", lossySent.Load(), lossyNeeded.Load())
	t.Logf("%d seeds: %d frames, %d of %d queue pairs ended in error, %d completion queues overflowed, %d of %d unreliable messages arrived",
		n, frames.Load(), failed.Load(), qps.Load(), overflows.Load(), received.Load(), sent.Load())
	t.Logf("of which %d with switches: %d hops, %d frames were marked, %d dropped, %d lost on cables, %d pauses, %d PFC deadlocks",
		switched.Load(), hops.Load(), marked.Load(), dropped.Load(), lost.Load(), pauses.Load(), deadlocks.Load())
	t.Logf("%d batches of copies blocked an engine, %d were for other threads, %d messages of other programs were exchanged meanwhile",
		blocked.Load(), elsewhere.Load(), bystander.Load())
}

// run calls Run, for some seeds twice to compare the hashes.
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

func TestSeedsDrawEveryKindOfNetwork(t *testing.T) {
	var stalls, engines, slices, cables, longReads, many, lossy, blocks int
	for seed := range uint64(1000) {
		p := ProfileOf(seed)
		for n, is := range map[*int]bool{&stalls: p.Stalls > 0, &engines: p.Engines, &slices: p.Slices > 1, &cables: p.Rate > 0, &longReads: p.LongReads > 0 && p.Loss > 0,
			&many: p.Pairs >= 32, &lossy: p.OneWay, &blocks: p.Blocks != nil} {
			if is {
				*n++
			}
		}
	}
	if min(stalls, engines, slices, cables, longReads, many, lossy, blocks) < 20 {
		t.Errorf("of 1000 seeds %d have stalls, %d several engines, %d NICs of several engines, %d slow cables, %d loss and long READs, %d many queue pairs, %d only loss, %d memory that blocks",
			stalls, engines, slices, cables, longReads, many, lossy, blocks)
	}
}

func TestPerfectNetworkNeedsNoRecovery(t *testing.T) {
	for seed := range uint64(20) {
		p := ProfileOf(seed).withoutFaults().withoutFailures()
		p.Errors, p.LateRecv = 0, 0
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Frames == 0 {
			t.Errorf("seed %d: nothing was sent", seed)
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
		p = p.withoutFailures()
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Failed > 0 {
			t.Errorf("seed %d: %d queue pairs ended in error at 2 %% loss", seed, r.Failed)
		}
	}
}

func TestRunsUseMemoryWindows(t *testing.T) {
	var invalidated, rejected uint64
	for seed := range uint64(300) {
		p := ProfileOf(seed)
		p.Windows, p.Errors, p.XRC = true, 0.03, 0
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, c := range r.Counters {
			invalidated += c.RxOpcode[packet.SendOnlyInv] + c.RxOpcode[packet.SendLastInv]
			rejected += c.RespRemoteAccess
		}
	}
	if invalidated < 100 || rejected < 10 {
		t.Errorf("%d windows were invalidated by peers, %d requests were rejected", invalidated, rejected)
	}
}

func TestRunsUseXRC(t *testing.T) {
	var sent, responses, failed uint64
	for seed := range uint64(30) {
		p := ProfileOf(seed)
		p.XRC, p.Errors, p.Blocks = p.Pairs, 0.03, nil // the bystander uses RC
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
						responses += c.RxOpcode[op]
					}
				} else if packet.Opcode(op).Service() == packet.RC && c.RxOpcode[op] > 0 {
					t.Fatalf("seed %d: opcode %#x of RC", seed, op)
				}
			}
		}
	}
	if sent < 10_000 || responses < 1000 || failed < 5 {
		t.Errorf("%d requests, %d responses, %d queue pairs failed", sent, responses, failed)
	}
}

func TestLargeRunKeepsInvariants(t *testing.T) {
	p := Large()
	if p.NICs != 200 || p.QPs() != 10_000 {
		t.Fatalf("%d NICs and %d queue pairs", p.NICs, p.QPs())
	}
	r, err := RunProfile(1, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames, %d completions, %d of %d queue pairs ended in error, %d of %d unreliable messages arrived, %v of virtual time",
		r.Frames, r.Completions, r.Failed, p.QPs(), r.UnreliableReceived, r.UnreliableSent, r.Virtual)
	if r.Completions < p.QPs() {
		t.Errorf("%d completions", r.Completions)
	}
}
