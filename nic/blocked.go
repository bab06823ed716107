package nic

import "softroce/mrtable"

// A Blocker makes copies of client memory take long on a Stepped engine, which has neither a
// watchdog nor threads that copy. The engine then goes on as Run does: with another thread in the
// place of the one that copies, or without waiting for the thread that it has left the copy to.
type Blocker struct {
	// Blocks decides whether a batch of copies for a context takes long. It is not called for users
	// whose memory was slow lately: other threads copy that from the start.
	Blocks func(*Context) bool

	// Blocked receives each batch that takes long, or that another thread is to carry out. The
	// context is held until Return. It may not call the engine.
	Blocked func(*BlockedCopy)

	// Slow is how long, in nanoseconds, a user's memory counts as slow afterwards; 0: as with Run.
	Slow int64
}

// A BlockedCopy is a batch of copies of client memory that the engine does not wait for.
type BlockedCopy struct {
	engine *Engine
	batch  *mrtable.Batch
	hold   *hold
	user   *slowUser
	left   bool // the engine's own thread was in it
	since  int64
}

// Device returns the NIC whose client's memory is copied.
func (c *BlockedCopy) Device() *Device { return c.hold.ctx.device }

// Run carries out the copies. It may be called once, between two steps of any engine.
func (c *BlockedCopy) Run() { c.batch.Run() }

// Return reports to the engine that Run has returned. The next step handles it.
func (c *BlockedCopy) Return() {
	e := c.engine
	e.posted = append(e.posted, func() {
		e.copied(c.user, c.hold, c.left || e.now-c.since > int64(ticksAsleep*watchdogTick))
	})
}

// A takenOver is the panic that ends the thread which another one has replaced: what it has called
// does not return.
type takenOver struct{}

// StepBlocked is Step for an engine with a Blocker.
func (e *Engine) StepBlocked(now int64) (next int64, busy bool) {
	batch := e.untilTakenOver(func() { next, busy = e.Step(now) })
	for batch != nil { // the new thread's copies may take long, too
		b := batch
		batch = e.untilTakenOver(func() { e.takeOver(b) })
		next, busy = e.now, true
	}
	return next, busy
}

// untilTakenOver calls f. If f does not return, because its thread is in a batch that takes long,
// it returns the batch.
func (e *Engine) untilTakenOver(f func()) (b *mrtable.Batch) {
	e.blocking = nil
	defer func() {
		if b = e.blocking; b != nil {
			e.blocking = nil
			_ = recover().(takenOver)
		}
	}()
	f()
	return nil
}

// runStepped runs a batch on a Stepped engine.
func (e *Engine) runStepped(b *mrtable.Batch) bool {
	k := e.config.Blocker
	if k == nil || !k.Blocks(b.Client().Owner.(*contextPart).ctx) {
		b.Run()
		return true
	}
	if e.resumable {
		e.blocking = b
		panic(takenOver{})
	}
	e.leave(b)
	return false
}

// reportBlocked passes a batch that another thread carries out to the Blocker.
func (e *Engine) reportBlocked(b *mrtable.Batch, h *hold, u *slowUser, left bool) {
	e.config.Blocker.Blocked(&BlockedCopy{engine: e, batch: b, hold: h, user: u, left: left, since: e.now})
}
