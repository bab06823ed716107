package nic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"softroce/mrtable"
)

// A Group is engines that may drive one NIC together. The first runs the control operations of such
// NICs, and stops the others for them.
type Group struct {
	engines []*Engine
	started chan struct{} // closed when the first runs: until then, its control operations run anywhere
	ended   atomic.Bool   // likewise from now on: the others take no more steps
}

// MaxSlices is how many engines may drive a NIC: a word of the doorbell page has a bit for each.
const MaxSlices = 32

// NewGroup makes a group of engines without devices. If they are not Stepped, they must have one
// Clock. They are closed when Run of all has returned.
func NewGroup(engines ...*Engine) *Group {
	g := &Group{engines: engines, started: make(chan struct{})}
	for i, e := range engines {
		e.group = g
		if i > 0 && !e.config.Stepped {
			e.gate = &gate{group: g}
		}
	}
	return g
}

func (g *Group) ios() (l []*mrtable.IO) {
	for _, e := range g.engines {
		l = append(l, e.io)
	}
	return l
}

// A gate is what stops an engine between two steps. The engine holds the lock in each step.
type gate struct {
	group  *Group
	mu     sync.Mutex
	wanted atomic.Bool // the first engine of the group wants the lock, or has it
	inside bool        // the engine has the lock; only the engine uses it
}

// gatePolls is how long an engine polls for a gate before its thread sleeps: about what a sleep and
// a wake-up cost, and longer than most steps.
const gatePolls = 50 * time.Microsecond

// enter begins a step. It returns false if the engine may not take one any more.
func (g *gate) enter() bool {
	if g == nil || g.inside && !g.wanted.Load() {
		return true
	}
	g.leave()
	pollFor(gatePolls, func() bool { return !g.wanted.Load() })
	g.mu.Lock()
	g.inside = true
	return !g.group.ended.Load()
}

// start waits, before an engine runs, for the first of its group, or lets the others run.
func (g *Group) start(ctx context.Context, e *Engine) {
	switch {
	case g == nil:
	case g.engines[0] == e:
		close(g.started)
	default:
		select {
		case <-g.started:
		case <-ctx.Done():
		}
	}
}

// end ends the steps of the others when the first engine of a group has ended.
func (g *Group) end(e *Engine) {
	if g == nil || g.engines[0] != e {
		return
	}
	resume := e.stopOthers()
	g.ended.Store(true)
	resume()
}

// leave lets the engine be stopped for longer, as while it sleeps.
func (g *gate) leave() {
	if g != nil && g.inside {
		g.inside = false
		g.mu.Unlock()
	}
}

// pollFor polls until f returns true, for some time at most. It lets other threads run: what it
// waits for may need the processor.
func pollFor(limit time.Duration, f func() bool) bool {
	for start := time.Now(); ; {
		if f() {
			return true
		}
		if time.Since(start) > limit {
			return false
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// stopOthers stops the other engines of a group between two steps, and returns a function that lets
// them go on. It is for the first one. Afterwards each takes a step, and lists its links again.
func (e *Engine) stopOthers() (resume func()) {
	if e.group == nil || e.group.engines[0] != e || e.config.Stepped {
		return func() {}
	}
	others := e.group.engines[1:]
	for _, o := range others {
		o.gate.wanted.Store(true)
	}
	for _, o := range others {
		if !pollFor(gatePolls, o.gate.mu.TryLock) {
			o.gate.mu.Lock()
		}
		o.catchUp(e.now)
	}
	return func() {
		for _, o := range others {
			o.gate.wanted.Store(false)
			o.gate.mu.Unlock()
			o.Wake()
		}
	}
}

// catchUp sets the time of an engine that is stopped: what it does for a control operation does not
// happen at its last step.
func (e *Engine) catchUp(now int64) {
	if now <= e.now {
		return
	}
	if e.due == e.now {
		e.due = now
	}
	e.now = now
	e.wall.sync(now)
}

// together calls f for each engine whose memory and frames a control operation of e concerns.
func (e *Engine) together(f func(*Engine)) {
	if e.group == nil {
		f(e)
		return
	}
	for _, o := range e.group.engines {
		f(o)
	}
}
