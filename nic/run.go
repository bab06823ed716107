package nic

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
)

// ErrRunning is returned by Run of an engine that runs, is Stepped, or was closed.
var ErrRunning = errors.New("engine runs already, is stepped or has ended")

// settleSteps is how many idle steps come before a sleep, however short the spin: memory
// that was given back needs two epochs.
const minIdleSteps = 3

// Run steps the engine until ctx ends. It spins while there is work and for
// EngineConfig.Spin beyond, then sleeps until a link, a client, a deadline or another
// goroutine wants something. It keeps its thread. When it returns, every context has heard a
// device-fatal event; Close is still to be called. The error is nil or ErrRunning.
func (e *Engine) Run(ctx context.Context) error {
	if e.config.Stepped || e.ended || !e.mail.start() {
		return ErrRunning
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, e.Wake)
	defer stop()

	e.loop(ctx)
	for _, d := range e.devices {
		d.broadcast(ib.EventDeviceFatal)
	}
	e.ended = true
	e.mail.stop()
	return nil
}

// loop reads the clock once a step; the time of a step that found work counts as busy.
func (e *Engine) loop(ctx context.Context) {
	e.spin.open(int64(e.config.Spin))
	defer e.spin.close()
	idleSince, idleSteps := int64(0), 0
	now := e.config.Clock()
	for ctx.Err() == nil {
		next, busy := e.Step(now)
		then := now
		now = e.config.Clock()
		if busy {
			e.busy.Add(now - then)
			idleSince, idleSteps = now, 0
			continue
		}
		e.idle.Add(now - then)
		e.spin.noteIdleStep(now, now-then)
		idleSteps++
		switch {
		case next != 0 && next <= now:
		case idleSteps < minIdleSteps || e.spin.keepSpinning(now, idleSince):
		default:
			now, busy = e.sleep(ctx, now)
			if busy {
				idleSince, idleSteps = now, 0
			}
		}
	}
}

// sleep waits for something to happen. What happens before the flags are up is found by the
// step that follows them; what happens after makes a descriptor ready. busy says that the step
// found work, and there was no sleep.
func (e *Engine) sleep(ctx context.Context, start int64) (now int64, busy bool) {
	e.setAsleep(1)
	defer e.setAsleep(0)
	next, busy := e.Step(start)
	now = e.config.Clock()
	if busy || ctx.Err() != nil || e.mail.waiting.Load() || next != 0 && next <= now {
		e.busy.Add(now - start)
		return now, true
	}
	e.poll.wait(now, next)
	woken := e.config.Clock()
	e.asleep.Add(woken - now)
	return woken, false
}

// announce tells everybody who might wake the engine whether it sleeps. An atomic store
// is a full fence: what the engine reads afterwards is no older than the flags.
func (e *Engine) setAsleep(asleep uint32) {
	e.poll.asleep.Store(asleep)
	for _, d := range e.devices {
		for _, c := range d.contexts {
			atomic.StoreUint32(word(c.opt.Doorbell, abi.DoorbellAsleep), asleep)
		}
	}
}

// Wake makes a sleeping engine step. It may be called from any goroutine, and costs next to
// nothing while the engine is awake.
func (e *Engine) Wake() {
	if e.poll.asleep.Load() != 0 && e.poll.asleep.CompareAndSwap(1, 0) {
		e.poll.ring()
	}
}

// watch makes a device's link wake the engine.
func (e *Engine) watch(d *Device) error {
	if e.config.Stepped {
		return nil
	}
	if fd := d.link.FD(); fd >= 0 {
		return e.poll.add(fd, unix.EPOLLIN)
	}
	d.link.OnReady(e.Wake)
	return nil
}

// watchDoorbell makes a context's client wake the engine. The descriptor is the
// client's too: it is never read, which could block. Every write to it is an edge.
func (e *Engine) watchDoorbell(c *Context) error {
	if e.config.Stepped || c.opt.DoorbellFD < 0 {
		return nil
	}
	return e.poll.add(c.opt.DoorbellFD, unix.EPOLLIN|unix.EPOLLET)
}

func (e *Engine) unwatchDoorbell(c *Context) {
	if !e.config.Stepped && c.opt.DoorbellFD >= 0 {
		e.poll.remove(c.opt.DoorbellFD)
	}
}
