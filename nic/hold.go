package nic

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
	"softroce/wire"
)

// The kernel copies to and from the memory of clients that cannot be mapped, and a page fault in it
// may last forever: a program may serve the pages (FUSE, userfaultfd), or another thread of the
// client hold the lock of its address space. So a batch of copies that takes long is left to the
// thread that is in it, and the engine goes on with another thread (watchdog.go).
//
// Until the batch is done its context is held. Its queue pairs send nothing, take no work requests,
// and have no timers; packets for them are kept (kept.go). Their completions wait. Control
// operations run, and so the client may destroy its objects and leave. After memoryDeadline the
// engine closes the context.
//
// A user with such memory costs the engine one delay: for some time afterwards, all copies for
// clients of that user are left to other threads from the start.

const (
	// memoryDeadline is how long, in nanoseconds, a batch of copies may take before its context is
	// closed. The engine counts how often it sees the batch in progress, once every memoryLook. So
	// a stall of the process, which stops the copy as well, does not count.
	memoryDeadline = 5e9
	memoryLook     = 100e6

	// slowMemory is how long, in nanoseconds, a user's memory counts as slow after a batch that
	// took long.
	slowMemory = 10e9

	// slowAside is how long a batch of a control operation may take before the user's memory counts
	// as slow.
	slowAside = time.Millisecond

	// maxCopiers is how many threads copy for one user at a time. Further batches wait.
	maxCopiers = 4
)

// A hold is a context whose batch is in progress on another thread, or waits for one.
type hold struct {
	ctx   *Context
	part  *contextPart // of ctx
	batch *mrtable.Batch
	since int64
	look  int64 // when the engine looks at it next
	looks int

	// XRC domains of ctx. Their target queue pairs wait as well, those of any context, because they
	// access the memory of ctx.
	domains []*domain

	// Completions for CQs of ctx, and events of its queue pairs. They may be many, and every step
	// goes through Engine.completions.
	deferred []deferred

	after []func() // called when the batch is done
}

// A slowUser is a user whose memory took long.
type slowUser struct {
	until   int64
	copiers int
	waiting []*hold
}

// held reports whether q waits for the memory of a client.
func (q *QP) held() bool {
	return q.part.hold != nil || q.init.Type == ib.QPTypeXRCRecv && q.init.XRCD.domain.holds[q.device.number] > 0
}

// hold holds the context of a batch.
func (e *Engine) hold(b *mrtable.Batch) *hold {
	p := b.Client().Owner.(*contextPart)
	c := p.ctx
	h := &hold{ctx: c, part: p, batch: b, since: e.now, look: e.now + memoryLook}
	p.hold = h
	e.holds, e.unusual = append(e.holds, h), true
	for _, s := range c.srqs {
		h.include(s)
	}
	return h
}

// include makes the target queue pairs of an SRQ of XRC wait.
func (h *hold) include(s *SRQ) {
	if s.xrcd != nil && !slices.Contains(h.domains, s.xrcd.domain) {
		s.xrcd.domain.holds[h.part.device.number]++
		h.domains = append(h.domains, s.xrcd.domain)
	}
}

// release ends a hold whose batch is done.
func (e *Engine) release(h *hold) {
	e.io.Settle(h.batch)
	h.part.hold = nil
	e.completions.deferred = append(h.deferred, e.completions.deferred...)
	e.completing = e.completing || len(e.completions.deferred) > 0
	e.holds = remove(e.holds, h)
	for _, f := range h.after {
		f()
	}
	if e.ended {
		return
	}
	h.freeDomains()
	for _, q := range h.ctx.qps {
		if q.part == h.part {
			q.goOn()
		}
	}
	e.settle()
	e.released = true
}

// freeDomains lets the target queue pairs of other contexts go on: the batch is done, or the SRQs
// of ctx go.
func (h *hold) freeDomains() {
	if len(h.domains) == 0 {
		return
	}
	for _, d := range h.domains {
		d.holds[h.part.device.number]--
	}
	h.domains = nil
	for _, c := range h.ctx.device.contexts {
		for _, q := range c.qps {
			if q.init.Type == ib.QPTypeXRCRecv && q.device == h.part.device {
				q.goOn()
			}
		}
	}
}

// goOn makes the engine look at a queue pair that was held.
func (q *QP) goOn() {
	if !q.held() {
		q.device.tx.activate(q)
		q.scheduleTimer()
	}
}

// expireHolds closes the contexts whose memory has taken too long.
func (e *Engine) expireHolds() {
	for _, h := range e.holds {
		if c := h.ctx; e.now >= h.look && c.fatal.Load() == nil {
			h.look = e.now + memoryLook
			if h.looks++; h.looks < memoryDeadline/memoryLook {
				continue
			}
			c.kill(&Error{Errno: syscall.ETIMEDOUT,
				Text: fmt.Sprintf("an access to the client's memory has not returned for %v", time.Duration(memoryDeadline))})
		}
	}
}

// holdDeadline returns when expireHolds has to look at a context, 0 if at none.
func (e *Engine) holdDeadline() (at int64) {
	for _, h := range e.holds {
		if h.ctx.fatal.Load() == nil && (at == 0 || h.look < at) {
			at = h.look
		}
	}
	return at
}

// runBatch is mrtable.IO.Runner.
func (e *Engine) runBatch(b *mrtable.Batch) bool {
	if len(e.slow) > 0 {
		if u := e.slowUser(b); u != nil {
			e.io.Copy(b)
			e.copyElsewhere(u, e.hold(b))
			return false
		}
	}
	switch {
	case e.stepped:
		return e.runStepped(b)
	case e.resumable:
		e.watchdog.run(b)
	default:
		return e.runAside(b)
	}
	return true
}

// userOf returns the user ID of the client of a batch.
func userOf(b *mrtable.Batch) uint32 { return b.Client().Owner.(*contextPart).ctx.opt.UID }

// noteSlow records that the memory of a user takes long.
func (e *Engine) noteSlow(uid uint32) *slowUser {
	u := e.slow[uid]
	if u == nil {
		u = &slowUser{}
		e.slow[uid] = u
	}
	u.until = e.now + e.slowFor()
	return u
}

// slowFor returns how long, in nanoseconds, a user's memory counts as slow.
func (e *Engine) slowFor() int64 {
	if k := e.config.Blocker; k != nil && k.Slow != 0 {
		return k.Slow
	}
	return slowMemory
}

// slowUser returns the user of a batch if its memory took long lately.
func (e *Engine) slowUser(b *mrtable.Batch) *slowUser {
	uid := userOf(b)
	u := e.slow[uid]
	if u == nil || e.now <= u.until || e.waitsFor(uid) {
		return u
	}
	if u.copiers == 0 {
		delete(e.slow, uid)
	}
	return nil
}

// waitsFor reports whether a batch of a user has not returned for long.
func (e *Engine) waitsFor(uid uint32) bool {
	for _, h := range e.holds {
		if h.ctx.opt.UID == uid && e.now > h.since+int64(watchdogTick) {
			return true
		}
	}
	return false
}

// copyElsewhere lets another thread run a batch, or the batch wait for one.
func (e *Engine) copyElsewhere(u *slowUser, h *hold) {
	if u.copiers >= maxCopiers {
		u.waiting = append(u.waiting, h)
		return
	}
	u.copiers++
	if e.config.Blocker != nil {
		e.reportBlocked(h.batch, h, u, false)
		return
	}
	go func() {
		start := time.Now()
		h.batch.Run()
		slow := time.Since(start) > ticksAsleep*watchdogTick
		e.post(func() { e.copied(u, h, slow) })
	}()
}

// copied handles the end of a batch that another thread has run.
func (e *Engine) copied(u *slowUser, h *hold, slow bool) {
	u.copiers--
	if slow {
		u.until = e.now + e.slowFor()
	}
	for len(u.waiting) > 0 && u.copiers < maxCopiers && !e.ended {
		next := u.waiting[0]
		u.waiting = u.waiting[1:]
		e.copyElsewhere(u, next)
	}
	e.release(h)
}

// A sender is a connected queue pair, as its peers know it.
type sender struct {
	addr netip.Addr
	qpn  uint32
}

// revokeData ends the use of what q has sent by batches in progress, and by those that this step
// still leaves to another thread: its buffers belong to the program again.
func (e *Engine) revokeData(q *QP) {
	s := sender{qpn: q.qpn}
	if q.path != nil {
		s.addr = q.path.Src
	}
	for _, h := range e.holds {
		h.revoke(s)
	}
	if e.io.HasPending() {
		e.endedSenders = append(e.endedSenders, s)
	}
}

// revoke drops the data of a sender. Data for a queue pair that was reset or destroyed meanwhile is
// dropped as well.
func (h *hold) revoke(s sender) {
	h.batch.Revoke(func(tag any) bool {
		by := tag.(*transport.Writer)
		to := by.QP.UserData().(*QP)
		return to.ctx == nil || by.Stale() || to.path != nil && to.path.Dst == s.addr && by.QP.DestQPN() == s.qpn
	})
}

// revokeMemory is revokeData for a region that is deregistered or registered again.
func (e *Engine) revokeMemory(r *mrtable.Region) {
	for _, h := range e.holds {
		h.batch.RevokeMemory(r)
	}
}

// abandon ends the wait of a batch for a thread: its context is closed. No region of it is left, so
// that all operations fail without a system call.
func (e *Engine) abandon(h *hold) {
	u := e.slow[h.ctx.opt.UID]
	if u == nil || !slices.Contains(u.waiting, h) {
		return
	}
	u.waiting = remove(u.waiting, h)
	h.batch.Run()
	e.release(h)
}

// runAside runs a batch of a control operation, which cannot be interrupted, on another thread. It
// waits as long as the watchdog does.
func (e *Engine) runAside(b *mrtable.Batch) bool {
	var first atomic.Bool // the batch has ended, or the engine does not wait any more
	done, took := make(chan struct{}), time.Duration(0)
	go func() {
		start := time.Now()
		b.Run()
		took = time.Since(start)
		if first.CompareAndSwap(false, true) {
			close(done)
		} else {
			e.detachedDone(b)
		}
	}()
	select {
	case <-done:
		if took > slowAside {
			e.noteSlow(userOf(b))
		}
		return true
	case <-time.After(ticksAsleep * watchdogTick):
	}
	if first.CompareAndSwap(false, true) {
		e.leave(b)
		return false
	}
	<-done
	return true
}

// takeOver goes on with the step of a thread that does not return from b.
func (e *Engine) takeOver(b *mrtable.Batch) {
	e.setAsleep(0)
	e.lender.noteSleep(e.now)
	e.leave(b)
	e.finish(true)
}

// leave leaves b to the thread that is in it, with everything that the thread still uses.
func (e *Engine) leave(b *mrtable.Batch) {
	e.io.Detach(b)
	e.pool.Abandon()
	e.keptFrames.abandon()
	for _, d := range e.devices {
		wire.KeepReceived(d.link)
		d.buffers = NewFrameBuffers()
	}
	u := e.noteSlow(userOf(b))
	u.copiers++
	h := e.hold(b)
	for _, s := range e.endedSenders {
		h.revoke(s)
	}
	if e.config.Blocker != nil {
		e.reportBlocked(b, h, u, true)
	}
}

// detachedDone reports the end of a batch, on a thread that the engine has left it to.
func (e *Engine) detachedDone(b *mrtable.Batch) {
	e.post(func() { e.copied(e.slow[userOf(b)], b.Client().Owner.(*contextPart).hold, true) })
}
