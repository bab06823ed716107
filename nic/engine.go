package nic

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
	"softroce/wire"
)

// engineStream is the stream of random numbers of an engine, beside those of its devices, whose
// streams have their indexes.
const engineStream = 1 << 32

// EngineConfig configures an engine.
type EngineConfig struct {
	// Name is the name of the engine's thread, as ps -L shows it; "" means "engine".
	Name string

	// Number is the number of the engine in its daemon, which snapshots have.
	Number int

	// Stepped means that Run is not used: one goroutine calls Step and everything else. Do then
	// calls its function at once, after those that slices have posted.
	Stepped bool

	// Spin is how long Run polls without finding work before it sleeps, if the machine has idle
	// processors, or if that delays no other thread. It is longer while clients wait on other
	// processors (see mover). 0 means DefaultSpin; a negative value disables spinning.
	Spin time.Duration

	// KeepsP means that Run keeps its P, of which GOMAXPROCS counts one for it, when it sleeps
	// briefly. Else Go's monitor (sysmon) takes the P away each time, and as long as it does that
	// it wakes up every 20 µs. Where a load makes the engine sleep often, that takes much of its
	// time.
	KeepsP bool

	// Clock returns a monotonic time in nanoseconds, above 0; nil means the system's clock. A
	// Stepped engine does not use it: its time is the argument of Step.
	Clock func() int64

	// Wall returns nanoseconds since 1970; nil means the system's clock or, if the engine is
	// Stepped, its own time.
	Wall func() int64

	// Seed makes memory keys reproducible; 0 makes them unpredictable.
	Seed uint64

	// ReadArena is the size in bytes of the buffer for data read from client memory that cannot be
	// mapped; 0 means DefaultReadArena.
	ReadArena int

	// Blocker makes copies of client memory take long on a Stepped engine, which then needs
	// StepBlocked; nil: none does.
	Blocker *Blocker

	// Buffers are those of the devices of the engine, which Stepped engines may share if one
	// goroutine steps them all. nil: each device has its own.
	Buffers *FrameBuffers
}

// Defaults of EngineConfig. DefaultSpin is a multiple of what a sleep and a wake-up cost, about 6
// µs.
const (
	DefaultSpin      = 50 * time.Microsecond
	DefaultReadArena = 16 << 20
)

// An Engine drives its devices. The package comment says which methods may be called from where.
type Engine struct {
	// What each step uses comes first, as in Device: three cache lines.
	devices []*Device
	io      *mrtable.IO
	now     int64 // time of the current step, or else of the last one
	due     int64 // the latest time of the next step, as the last one returned it; 0: none
	stalled int64 // total time that the timers do not count

	steps      atomic.Uint64  // any goroutine may read it
	budget     int            // bytes that the current step may still transmit
	stepLimit  int            // bytes that a step may transmit, and receive on each device
	last       *Context       // the one that transmitted last, nil if it is closed
	first      int            // index of the device that transmits first in the current step
	waiting    int            // turns, of all devices, that wait for reads of memory
	random     *mathrand.Rand // from seed
	continues  bool           // the last step wanted this one at once
	released   bool           // the next step delivers kept frames
	resumable  bool           // another thread may take the engine over now
	stepped    bool           // config.Stepped
	silent     bool           // no doorbell has been rung since the last step
	unusual    bool           // the fields of unusual may have elements
	completing bool           // those of completions may have

	wall   wallclock
	posted []func()       // by other goroutines, to run in this step
	pool   transport.Pool // of the queue pairs of all devices

	completions completions
	mail        mailbox
	one         [1]*Device // storage of devices, for one
	unusualState
	sharedAt   int64                    // when the client that transmits changed last, or 0
	group      *Group                   // nil: it drives whole NICs only
	gate       *gate                    // not nil if another engine of the group stops it
	failed     func(tag any, err error) // e.writeFailed, as a func value that is made once
	atomicDone func(tag any, id, original uint64)

	config     EngineConfig
	seed       uint64
	ended      bool // Run has returned or Close was called
	kept       int  // bytes of the frames that are kept for holds
	keptFrames keptFrames
	slow       map[uint32]*slowUser // by user ID
	watchdog   watchdog
	blocking   *mrtable.Batch // the thread in it is to be replaced: see StepBlocked
	poll       poller
	spin       spinner
	lender     lender
	lent       int64 // for how long the step lent the processor

	// Time spent, in nanoseconds; any goroutine may read it.
	busy, idle, asleep atomic.Int64

	sges []transport.SGE // room for a copy of those of a slot

	endedSenders []sender // whose data the pending copies may take: see revokeData
}

// An unusualState is what an engine has to look at in few steps. Engine.unusual is set when it gets
// an element, so that others do not look at it.
type unusualState struct {
	holds    []*hold       // contexts one of whose copies is blocked
	lateCQs  []*CQ         // whose late is not empty
	breached []*Context    // to be closed at the end of the step
	raised   []raisedEvent // to be delivered at the end of the step
	repeated []func() bool // called at the end of each step: see Repeat
}

func (s *unusualState) empty() bool {
	return len(s.holds) == 0 && len(s.lateCQs) == 0 && len(s.breached) == 0 && len(s.raised) == 0 && len(s.repeated) == 0
}

// NewEngine returns an engine without devices.
func NewEngine(c EngineConfig) (*Engine, error) {
	c.Name = cmp.Or(c.Name, threadName)
	switch {
	case c.Spin == 0:
		c.Spin = DefaultSpin
	case c.Spin < 0:
		c.Spin = 0
	}
	if c.Clock == nil {
		c.Clock = systemClock()
	}
	if c.ReadArena == 0 {
		c.ReadArena = DefaultReadArena
	}
	e := &Engine{config: c, stepped: c.Stepped, seed: c.Seed, wall: wallclock{read: wallOf(&c)}, io: mrtable.NewIO(c.ReadArena), stepLimit: stepBytes}
	if e.seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, err
		}
		e.seed = binary.LittleEndian.Uint64(b[:])
	}
	e.random = mathrand.New(mathrand.NewPCG(e.seed, engineStream))
	e.devices = e.one[:0]
	e.failed, e.atomicDone = e.writeFailed, atomicDone
	e.io.Runner, e.slow = e.runBatch, map[uint32]*slowUser{}
	e.poll.keepsP = c.KeepsP
	e.watchdog.engine, e.watchdog.wake = e, make(chan struct{}, 1)
	e.sges = make([]transport.SGE, 0, DefaultLimits.MaxSGE)
	if !c.Stepped {
		if err := e.poll.open(); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// systemClock returns a monotonic clock that starts at 1.
func systemClock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// Devices returns the engine's devices, without those that another engine of its group stands for.
func (e *Engine) Devices() (l []*Device) {
	for _, d := range e.devices {
		if !d.isPart() {
			l = append(l, d)
		}
	}
	return l
}

// Now returns the engine's time; for a Stepped engine, that of the last Step.
func (e *Engine) Now() int64 {
	if e.config.Stepped {
		return e.now
	}
	return e.config.Clock()
}

// Step runs the phases listed in the package comment once. now is above 0 and not less than in the
// previous call. Step returns the latest time of the next call (0 if only an external event needs
// one), and whether it found work: then it should be called again at once.
func (e *Engine) Step(now int64) (next int64, busy bool) {
	e.noteStall(now)
	e.continues = e.due == e.now
	e.now = now
	e.wall.sync(now)
	e.steps.Store(e.steps.Load() + 1)
	e.lent = 0
	// A client that has seen a message may have posted the destruction of its queue pair: the
	// message's ACK left in the previous step. What is posted from now on waits for the next step.
	if len(e.posted) == 0 && !e.stepped {
		e.posted = e.takeFuncs()
	}
	if e.unusual {
		e.expireHolds()
	}
	e.resumable = true
	e.deliverKept()
	received := 0
	for _, d := range e.devices {
		n, unread := d.receive()
		received += n
		busy = busy || n > 0 || unread
	}
	// Read buffers and unmapped memory are reused two epochs later, and the inline data of work
	// requests. No received frame that refers to them is left; those that wait for a link are
	// copies.
	e.io.Now = now
	e.io.Epoch()
	e.pool.Recycle()
	e.releaseReads() // what a fabric held by reference was received
	e.resumable = false
	if received > 0 && received <= lendFrames && !e.stepped {
		e.lendInStep()
	}
	if len(e.posted) > 0 {
		e.runPosted()
		e.resumable = true
		e.deliverKept() // before timers expire that wait for these frames
		e.resumable = false
		busy = true
	}
	for _, d := range e.devices {
		if d.expire() {
			busy = true
		}
		if d.releasePaced() {
			busy = true
		}
		if !e.silent && d.readDoorbells() {
			busy = true
		}
	}
	if e.unusual {
		e.releaseLate()
	}
	e.transmit()
	return e.finish(busy)
}

// StepSilent is Step for a Stepped engine whose clients have rung no doorbell since the last step.
func (e *Engine) StepSilent(now int64) (next int64, busy bool) {
	e.silent = true
	next, busy = e.Step(now)
	e.silent = false
	return next, busy
}

// finish ends a step, from the flush on. Neither finish nor receive returns if another thread takes
// the engine over meanwhile. So these, and what calls them, keep no state of the engine in local
// variables.
func (e *Engine) finish(busy bool) (int64, bool) {
	e.resumable = true
	if e.emit() {
		busy = true
	}
	e.resumable = false
	e.notify()
	if e.unusual {
		e.deliverEvents()
		if e.closeBreached() {
			busy = true
		}
		e.unusual = !e.unusualState.empty()
	}
	busy = busy || e.stepped && e.group != nil && len(e.group.engines[0].posted) > 0
	e.due = e.nextDeadline(busy)
	return e.due, busy
}

// resume continues the turns of queue pairs that waited for reads of memory, and those after them.
// It reports whether there were any.
func (e *Engine) resume() bool {
	if e.waiting == 0 {
		return false
	}
	for _, d := range e.devices {
		d.resume()
	}
	e.serve()
	return true
}

// runPosted runs the functions that were taken.
func (e *Engine) runPosted() {
	defer e.stopOthers()()
	for len(e.posted) > 0 {
		f := e.posted[0]
		e.posted = e.posted[1:]
		f()
	}
}

// takeFuncs returns the functions that other goroutines have posted.
func (e *Engine) takeFuncs() []func() {
	if !e.mail.waiting.Load() {
		return nil
	}
	return e.mail.take()
}

// emit carries out what queue pairs have produced: operations on memory, frames, completions.
func (e *Engine) emit() (busy bool) {
	for e.flush(); e.resume(); {
		e.flush()
	}
	for _, d := range e.devices {
		if d.send() {
			busy = true
		}
	}
	// What a link holds is known only after all have sent: one device's frames are in another's
	// link.
	e.releaseReads()
	e.publish(true)
	return busy
}

// releaseReads releases all read buffers if no link refers to them. Frames that wait for a link are
// copies. The next reads then use memory that is in the processor's cache.
func (e *Engine) releaseReads() {
	if e.io.HasReads() && !slices.ContainsFunc(e.devices, func(d *Device) bool { return wire.HoldsReferences(d.link) }) {
		e.io.ReleaseReads()
	}
}

// copyPayload makes sure that no frame refers to a program's memory, before an operation releases
// memory: neither those that wait for a link nor those that a link passes by reference.
func (e *Engine) copyPayload() {
	e.together((*Engine).copyOwnPayload)
}

// copyOwnPayload is copyPayload for the frames of one engine of a group.
func (e *Engine) copyOwnPayload() {
	for _, d := range e.devices {
		d.tx.copyWaiting()
		d.link.CopyPayload()
	}
}

// endReferences makes sure that no fabric refers to memory that is released at the end of the step:
// they copy what they hold, and what the device sends in the step.
func (d *Device) endReferences() {
	d.tx.forbidReferences()
	for _, o := range d.engine.devices {
		o.link.CopyPayload()
	}
}

// closeBreached closes the contexts whose clients broke the rules of their rings, over several
// steps if they have many objects. It reports whether some are left.
func (e *Engine) closeBreached() bool {
	if len(e.breached) == 0 {
		return false
	}
	defer e.stopOthers()()
	for len(e.breached) > 0 {
		c := e.breached[len(e.breached)-1]
		sink, reason := c.events, c.fatal.Load()
		if !c.closed {
			c.event(Event{Type: ib.EventDeviceFatal, Port: 1})
		}
		done := c.CloseSome(CloseObjects)
		if sink != nil {
			sink.Killed(reason)
		}
		if !done {
			return true
		}
		e.breached = slices.DeleteFunc(e.breached, func(o *Context) bool { return o == c })
	}
	return false
}

// nextDeadline returns the earliest deadline of the queue pairs and links, 0 if there is none.
func (e *Engine) nextDeadline(busy bool) int64 {
	if busy {
		return e.now
	}
	next := int64(0)
	if e.unusual {
		next = e.holdDeadline()
		if t := e.lateDeadline(); t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	for _, d := range e.devices {
		if d.opened() {
			return e.now
		}
		if t := d.link.NextDeadline(); t != 0 && (next == 0 || t < next) {
			next = t
		}
		if t := d.congestion.paced.next; t != 0 && (next == 0 || t < next) {
			next = t
		}
		if t := d.timers.next; t != 0 && (next == 0 || t+d.lag+e.stalled < next) {
			next = t + d.lag + e.stalled
		}
	}
	return next
}

// Idle reports whether the next step finds nothing to do unless frames arrive or a client needs it
// before, and if so when it is due, 0 for never. Only a Stepped engine may be asked.
func (e *Engine) Idle() (due int64, idle bool) {
	if e.unusual || e.released || e.waiting > 0 {
		return 0, false
	}
	for _, d := range e.devices {
		if d.working() {
			return 0, false
		}
	}
	return e.nextDeadline(false), true
}

// working reports whether the device has something to send, or has received what the next step
// handles.
func (d *Device) working() bool {
	t, s := &d.tx, &d.congestion
	return !t.empty() || t.backlogged != 0 || !t.clients.empty() || !t.due.empty() || !s.due.empty() || !s.sent.empty() ||
		t.mads || d.opened() || d.link.NextDeadline() != 0
}

// Skip notes a step that was left out because the NIC was Idle. due is what Idle has returned.
func (e *Engine) Skip(now, due int64) { e.now, e.due = now, due }

// Do runs f on the engine, between two steps, and returns when f has returned. f must not block or
// call Do. Before Run is called and after it has returned, f runs in the caller's goroutine, one
// call at a time.
func (e *Engine) Do(f func()) {
	if e.config.Stepped {
		e.runPosted() // onControl has posted it before
		f()
		return
	}
	e.mail.do(f, e.Wake)
}

// post is Do without waiting for f.
func (e *Engine) post(f func()) {
	if e.config.Stepped {
		f()
		return
	}
	e.mail.post(f, e.Wake)
}

// Close closes every context, after a device-fatal event, and every link. Run must have returned or
// never be called.
func (e *Engine) Close() error {
	var first error
	e.Do(func() {
		if e.devices == nil && e.ended {
			return
		}
		e.ended = true
		for _, d := range e.Devices() {
			if err := d.close(); err != nil && first == nil {
				first = err
			}
		}
		e.devices = nil
		// Two epochs release the memory that is still referenced.
		for range 2 {
			e.together(func(e *Engine) { e.io.Epoch() })
		}
		e.poll.close()
	})
	return first
}
