package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
)

// In some runs the kernel copies the memory of programs, and some copies take long, as if a page
// fault in them waited for another program. No page fault does: the NIC leaves such a batch of
// copies to the run, which carries it out and returns it later.
//
// Some copies wait until the bystander, a program whose memory does not block, has exchanged
// messages (bystander.go): that it makes progress is invariant 15.

// Blocks is what a profile has of copies that take long.
type Blocks struct {
	Count   int           // batches of copies that take long, besides those of slow memory
	OneIn   int           // chance of a batch to be one of them
	Longest time.Duration // that one takes, unless it waits for the bystander
	Waits   int           // batches that wait for the bystander
	Users   int           // the programs are spread over so many users
	Mapped  float64       // chance that a program's memory is mapped
	Slow    time.Duration // how long a user's memory counts as slow; 0: as with a daemon
	OneNIC  bool          // only the memory of programs on the first NIC is not mapped
}

// drawBlocks draws the copies that take long. Where a user's memory does not count as slow for
// long, more threads of the engine are replaced; else more batches are for other threads.
func (p *Profile) drawBlocks(r *rand.Rand) {
	p.Blocks = &Blocks{Count: 1 + r.IntN(30), OneIn: 1 + r.IntN(20), Longest: time.Duration(1 << (10 + r.IntN(15))), Waits: r.IntN(5),
		Users: 1 + r.IntN(4), Mapped: r.Float64() / 2}
	if r.IntN(3) > 0 {
		p.Blocks.Slow = 1
	}
	p.Blocks.OneNIC = r.IntN(4) == 0
}

// blocked is the state of the copies of a run.
type blocked struct {
	*Blocks
	rnd       *rand.Rand
	process   *mrtable.Process     // this one
	began     int                  // batches that were drawn to take long
	taken     int                  // batches that the NICs have left to the run
	waits     int                  // of which so many have waited for the bystander
	on        map[*nic.Device]bool // NICs that have left one
	copies    []*blockedCopy       // that are not returned
	bystander bystander
}

// A blockedCopy is a batch of copies that the run has not returned.
type blockedCopy struct {
	*nic.BlockedCopy
	runs, returns int64 // when
	ran           bool
	messages      int // it returns when the bystander has exchanged so many; 0: at the time returns
}

// progressTimeout is how long, in virtual nanoseconds, the bystander may take for its messages. A
// NIC closes the context of a program whose memory takes 5 s.
const progressTimeout = 2e9

func (sim *simulation) openBlocked(seed uint64) (err error) {
	p := sim.profile.Blocks
	if p == nil {
		return nil
	}
	sim.blocked = &blocked{Blocks: p, rnd: rand.New(rand.NewPCG(seed, 7)), on: map[*nic.Device]bool{}}
	sim.blocked.process, err = nictest.ThisProcess()
	return err
}

func (sim *simulation) closeBlocked() {
	if sim.blocked != nil {
		sim.blocked.process.Close()
	}
}

// memoryOf draws the user of a program, unless it has one, and how the NIC d accesses its memory.
func (sim *simulation) memoryOf(p *program, d *nic.Device) (mrtable.Memory, error) {
	b := sim.blocked
	if b == nil {
		return mrtable.HeapMemory(p.mem), nil
	}
	if p.user == 0 {
		p.user = uint32(1 + b.rnd.IntN(b.Users))
	}
	if b.rnd.Float64() < b.Mapped || b.OneNIC && d.Name() != nicName(0) {
		return mrtable.HeapMemory(p.mem), nil
	}
	return b.process.Memory(uint64(uintptr(unsafe.Pointer(&p.mem[0]))), uint64(len(p.mem)), everyAccess)
}

func (sim *simulation) blocker() *nic.Blocker {
	b := sim.blocked
	if b == nil {
		return nil
	}
	return &nic.Blocker{Blocks: b.blocks, Blocked: sim.take, Slow: int64(b.Slow)}
}

// blocks draws whether a batch takes long.
func (b *blocked) blocks(c *nic.Context) bool {
	if b.began == b.Count || b.bystander.has(c) || b.rnd.IntN(b.OneIn) > 0 {
		return false
	}
	b.began++
	return true
}

// take draws how long a batch takes, and when in this time memory is accessed.
func (sim *simulation) take(one *nic.BlockedCopy) {
	b := sim.blocked
	c := &blockedCopy{BlockedCopy: one, runs: sim.now, returns: sim.now}
	b.copies = append(b.copies, c)
	b.on[one.Device()] = true
	b.taken++
	switch kind := b.rnd.IntN(4); {
	case kind == 0: // at once
	case kind == 1 && b.waits < b.Waits:
		b.waits++
		c.messages = b.bystander.exchanged + 1 + b.rnd.IntN(3)
	default:
		c.returns += b.rnd.Int64N(int64(b.Longest))
	}
	c.runs = c.returns
	if b.rnd.IntN(2) == 0 {
		c.runs = sim.now + b.rnd.Int64N(c.returns-sim.now+1)
	}
}

// needed returns how many messages of the bystander copies wait for.
func (b *blocked) needed() (n int) {
	for _, c := range b.copies {
		n = max(n, c.messages)
	}
	return n
}

// next returns when the run has to look at c.
func (c *blockedCopy) next() int64 {
	switch {
	case !c.ran:
		return c.runs
	case c.messages > 0:
		return c.returns + progressTimeout
	}
	return c.returns
}

// blockedCopies returns the copies that are not returned.
func (sim *simulation) blockedCopies() []*blockedCopy {
	if sim.blocked == nil {
		return nil
	}
	return sim.blocked.copies
}

// returnCopies carries out the copies whose time has come, and returns those that are done.
func (sim *simulation) returnCopies() (err error) {
	b := sim.blocked
	if b == nil {
		return nil
	}
	b.copies = slices.DeleteFunc(b.copies, func(c *blockedCopy) bool {
		if !c.ran && sim.now >= c.runs {
			c.ran = true
			c.Run()
		}
		waits := c.messages > b.bystander.exchanged
		if waits && sim.now >= c.returns+progressTimeout {
			err = fmt.Errorf("invariant 15: since a copy takes long, programs whose memory does not have exchanged no message %d for %v",
				b.bystander.exchanged+1, time.Duration(sim.now-c.returns))
		}
		if !c.ran || waits || sim.now < c.returns {
			return false
		}
		c.Return()
		return true
	})
	return err
}

// peerBlocked reports whether memory of programs on a NIC other than d has blocked: their queue
// pairs have not replied meanwhile.
func (sim *simulation) peerBlocked(d *nic.Device) bool {
	if sim.blocked == nil {
		return false
	}
	for o := range sim.blocked.on {
		if o != d {
			return true
		}
	}
	return false
}
