package sim

import (
	"math/rand/v2"
	"testing"
)

// TestRunsBlockMemory runs seeds whose programs end and fail all the time while copies of their
// memory take long: on networks with all faults, and on cables within one engine, where a copy may
// take its data from the memory of the sender.
func TestRunsBlockMemory(t *testing.T) {
	var blocked, elsewhere, bystander int
	for seed := range uint64(300) {
		p := ProfileOf(seed)
		p.drawBlocks(rand.New(rand.NewPCG(seed, 8)))
		if seed%3 > 0 {
			p = p.withoutFaults()
			p.Blocks.Count, p.Blocks.Longest = 100, 20e6
			p.Switches, p.Slices, p.Engines, p.Rate, p.OneWay = nil, 1, false, 0, false
		}
		p.Disruptions, p.SharedRecv = 10, seed%2 == 0
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		blocked += r.Blocked
		elsewhere += r.BlockedElsewhere
		bystander += r.Bystander
	}
	t.Logf("%d batches blocked the engine, %d were for other threads, %d messages of others meanwhile", blocked, elsewhere, bystander)
	if min(blocked, elsewhere, bystander) < 300 {
		t.Errorf("%d batches blocked the engine, %d were for other threads, %d messages of others meanwhile", blocked, elsewhere, bystander)
	}
}

// Copies that take long delay completions, and no queue pair fails. Only peers see timeouts: of the
// first NIC there are none in the runs where no other one has such copies (invariant 9).
func TestBlockedMemoryFailsNoQueuePair(t *testing.T) {
	for seed := range uint64(100) {
		p := ProfileOf(seed).withoutFaults().withoutFailures()
		p.Errors = 0
		p.drawBlocks(rand.New(rand.NewPCG(seed, 8)))
		p.Blocks.Waits, p.Blocks.Longest, p.Blocks.Slow, p.Blocks.OneNIC = 0, 2e6, 1, seed%2 == 0
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Failed > 0 {
			t.Errorf("seed %d: %d queue pairs ended in error", seed, r.Failed)
		}
	}
}
