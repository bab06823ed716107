package nic

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
)

// ErrRunning is returned by Run if the engine is running, is Stepped or was closed.
var ErrRunning = errors.New("engine is running, is stepped or was closed")

// Run steps the engine until ctx ends. It spins while there is work and for EngineConfig.Spin
// longer, then sleeps until a link, a client, a deadline or another goroutine needs it. The engine
// has an OS thread to itself. Before it returns, every context gets a device-fatal event; the
// caller must still call Close. The error is nil or ErrRunning.
func (e *Engine) Run(ctx context.Context) error {
	if e.config.Stepped || e.ended || !e.mail.start() {
		return ErrRunning
	}
	e.group.start(ctx, e)
	stop := context.AfterFunc(ctx, e.Wake)
	defer stop()
	e.spin.open(int64(e.config.Spin))
	defer e.spin.close()

	done := make(chan struct{})
	takeOver := func(b *mrtable.Batch, p placement) {
		e.drive(ctx, done, func() {
			p.takeOver()
			e.takeOver(b)
		})
	}
	go e.drive(ctx, done, func() {
		o := newObserver()
		o.follow(int(e.watchdog.thread.Load())) // before clients come, whose descriptors may be counted
		go e.watchdog.watch(done, o, takeOver)
	})
	<-done
	e.group.end(e)
	for _, d := range e.Devices() {
		d.broadcast(ib.EventDeviceFatal)
	}
	e.ended = true
	e.runPosted()
	e.mail.stop()
	return nil
}

// drive is the engine's goroutine, until ctx ends or another one takes the engine over. It closes
// done if ctx has ended. Its thread ends with it, because of the thread's name and placement.
func (e *Engine) drive(ctx context.Context, done chan struct{}, begin func()) {
	runtime.LockOSThread()
	thread := unix.Gettid()
	if thread == unix.Getpid() { // the name of the main thread is that of the process
		go e.drive(ctx, done, begin)
		<-done // while the main thread is locked, the engine gets another one
		runtime.UnlockOSThread()
		return
	}
	nameThread(e.config.Name)
	setTimerSlack()
	e.watchdog.thread.Store(int32(thread))
	begin()
	e.loop(ctx)
	close(done)
}

// loop reads the clock once per step, and around what lets other threads run. The time of a step
// that found work counts as busy, without what the step lent. It leaves the gate without a deferred
// call, which a thread that lost the engine in a step would run too.
func (e *Engine) loop(ctx context.Context) {
	idleSince := int64(0)
	now := e.config.Clock()
	for ctx.Err() == nil && e.gate.enter() {
		next, busy := e.Step(now)
		then := now
		now = e.config.Clock()
		took := now - then - e.lent
		if busy {
			e.busy.Add(took)
			e.adaptStep(took)
			idleSince = now
			continue
		}
		e.idle.Add(took)
		e.spin.noteIdleStep(now, took)
		if e.lender.update(&e.spin, now, e.clients()) {
			now = e.config.Clock()
		}
		switch {
		case next != 0 && next <= now:
		case e.spin.keepSpinning(now, idleSince, e.lender.mover.spinTime(e.spin.limit)) || e.spin.untilDeadline(now, next):
			if !e.spin.mustNotYield(now, next) && !e.lender.keepProcessor(now) && e.spin.yield(now) {
				then, now = now, e.config.Clock()
				e.idle.Add(now - then)
				e.spin.noteYield(now, now-then)
				e.lender.noteYield(now)
			}
		case e.lender.keepPolling(&e.spin, now, idleSince, next):
			if e.lender.borrows(now, next) {
				now, _ = e.lend()
			}
		default:
			now, busy = e.sleep(ctx, now)
			if busy {
				idleSince = now
			}
		}
	}
	e.gate.leave()
}

// lend lets the borrower run. It returns the time afterwards and how long the engine waited, which
// counts as idle time.
func (e *Engine) lend() (now, took int64) {
	start := e.config.Clock()
	spins := e.spin.maySpin(start)
	e.lender.lend()
	now = e.config.Clock()
	took = now - start
	e.idle.Add(took)
	e.lender.noteLent(now, took)
	if spins { // else the spinner knows about the threads that take long
		e.spin.noteYield(now, took)
	}
	return now, took
}

// lendInStep lends the processor before the step acknowledges, so that the reply leaves with the
// ACK. No request of another client and no control call waits for that; an ACK of another client
// may. Among many threads it would take long.
func (e *Engine) lendInStep() {
	if e.lender.borrower == nil || e.clients() != 1 || len(e.posted) > 0 || e.now < e.spin.crowded.until {
		return
	}
	if next := e.nextDeadline(false); !e.lender.borrows(e.now, next) || e.spin.mustNotYield(e.now, next) {
		return
	}
	e.now, e.lent = e.lend()
	e.io.Now = e.now
	e.stalled += max(0, e.lent-stallGrace)
}

// clients returns how many clients transmit: 1, which may be idle, or 2, which stands for more. It
// is 0 if the engine does not drive whole NICs.
func (e *Engine) clients() int {
	switch {
	case e.group != nil:
		return 0
	case e.alone():
		return 1
	default:
		return 2
	}
}

// sleep waits for an event. The step after setAsleep finds what happened before it; what happens
// later makes a descriptor ready. busy means that this step found work, and that the engine did not
// sleep. Otherwise this step and the idle one before it are two epochs, so the memory of all
// regions that were deregistered is closed.
func (e *Engine) sleep(ctx context.Context, start int64) (now int64, busy bool) {
	e.setAsleep(1)
	// A deferred call would clear the flag of the thread that takes the engine over in this step.
	next, busy := e.Step(start)
	now = e.config.Clock()
	if busy || ctx.Err() != nil || e.mail.waiting.Load() || next != 0 && next <= now {
		e.setAsleep(0)
		e.busy.Add(now - start - e.lent)
		return now, true
	}
	alarm := e.spin.wakeBefore(now, next)
	e.poll.list(e.devices)
	e.gate.leave()
	e.poll.wait(now, alarm)
	if !e.gate.enter() {
		return now, false
	}
	e.setAsleep(0)
	woken := e.config.Clock()
	e.spin.noteWake(alarm, woken)
	e.lender.noteSleep(woken)
	e.spin.noSpin.noteSleep(woken - now)
	e.lender.noLending.noteSleep(woken - now)
	e.asleep.Add(woken - now)
	return woken, false
}

// setAsleep sets the flag that tells clients and links whether the engine must be woken. The atomic
// store is a full fence: later loads are not older than the flag.
func (e *Engine) setAsleep(asleep uint32) {
	e.poll.asleep.Store(asleep)
	for _, d := range e.devices {
		for _, c := range d.contexts {
			d.setAsleep(word(c.opt.Doorbell, abi.DoorbellAsleep), asleep)
		}
	}
}

// Wake wakes a sleeping engine. It may be called from any goroutine, and is cheap while the engine
// is awake.
func (e *Engine) Wake() {
	if e.poll.asleep.Load() != 0 && e.poll.asleep.CompareAndSwap(1, 0) {
		e.poll.ring()
	}
}

// watchDoorbell adds a context's doorbell eventfd to what wakes the engine. The client shares the
// descriptor, so reading it could block: it is edge-triggered and never read.
func (e *Engine) watchDoorbell(c *Context) error {
	if e.config.Stepped || c.opt.DoorbellFD < 0 {
		return nil
	}
	return e.poll.add(c.opt.DoorbellFD)
}

func (e *Engine) unwatchDoorbell(c *Context) {
	if !e.config.Stepped && c.opt.DoorbellFD >= 0 {
		e.poll.remove(c.opt.DoorbellFD)
	}
}
