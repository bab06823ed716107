package nic

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
)

// EngineConfig is what an engine is made of.
type EngineConfig struct {
	// Stepped says that nobody calls Run: one goroutine steps the engine and calls
	// everything else. Do then runs its function at once.
	Stepped bool

	// Spin is how long Run looks for work in vain before it sleeps, where the machine has
	// processors to spare; 0 stands for DefaultSpin, a negative value for not at all.
	Spin time.Duration

	// Clock tells nanoseconds of a monotonic clock, above 0; nil stands for the system's. A
	// Stepped engine has none: its time is what Step is told.
	Clock func() int64

	// Wall tells nanoseconds since 1970; nil stands for the system's clock or, where the engine is
	// Stepped, for its own time.
	Wall func() int64

	// Seed makes memory keys repeatable; 0 makes them unpredictable.
	Seed uint64

	// ReadArena is the memory in bytes for what is read from client memory that cannot
	// be mapped; 0 stands for DefaultReadArena.
	ReadArena int
}

// Defaults of EngineConfig. DefaultSpin is a few times what sleeping and waking costs, some
// 6 µs.
const (
	DefaultSpin      = 50 * time.Microsecond
	DefaultReadArena = 16 << 20
)

// An Engine drives the devices given to it. See the package comment for who may call what.
type Engine struct {
	config EngineConfig
	seed   uint64
	io     *mrtable.IO

	devices []*Device
	timers  timerHeap
	now     int64
	wall    wallclock
	ended   bool // Run has returned, or Close was called: devices are gone

	completions completions
	failed      func(tag any, err error) // e.writeFailed, bound once
	breached    []*Context               // closed at the end of the step, see breach

	scratch [2048]byte       // the private copy of one WQE
	wr      transport.SendWR // what is read out of it

	mail mailbox
	poll poller
	spin spinner

	// Busy time, in nanoseconds; read by any goroutine.
	busy, idle, asleep atomic.Int64
	steps              atomic.Uint64
}

// NewEngine returns an engine without devices.
func NewEngine(c EngineConfig) (*Engine, error) {
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
	e := &Engine{config: c, seed: c.Seed, wall: wallclock{read: wallOf(&c)}, io: mrtable.NewIO(c.ReadArena)}
	if e.seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, err
		}
		e.seed = binary.LittleEndian.Uint64(b[:])
	}
	e.failed = e.writeFailed
	e.wr.SGEs = make([]transport.SGE, 0, DefaultLimits.MaxSGE)
	if !c.Stepped {
		if err := e.poll.open(); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// systemClock is the monotonic clock, from 1 on.
func systemClock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// Devices returns the engine's devices.
func (e *Engine) Devices() []*Device { return e.devices }

// Now returns the time on the engine's clock; of a Stepped engine, that of its last Step.
func (e *Engine) Now() int64 {
	if e.config.Stepped {
		return e.now
	}
	return e.config.Clock()
}

// Step does one round, at the time now, which must be above 0 and never less than
// before. It returns when it wants to be called next at the latest, 0 for when something
// happens from outside, and whether it found work: then it wants to be called at once.
func (e *Engine) Step(now int64) (next int64, busy bool) {
	e.now = now
	e.wall.sync(now)
	e.steps.Store(e.steps.Load() + 1)
	// Before anything is received: a client that has seen its message come may destroy the
	// queue pair, and its ACK must have gone out by then.
	if e.runPosted() {
		busy = true
	}
	drained := true
	for _, d := range e.devices {
		n, all := d.receive()
		busy = busy || n > 0
		drained = drained && all && d.tx.empty()
	}
	// What was read from memory, or unmapped, is let go two epochs later: no frame that
	// refers to it may wait longer than that.
	if drained {
		e.io.Epoch()
	}
	if e.expire() {
		busy = true
	}
	for _, d := range e.devices {
		if d.doorbells() {
			busy = true
		}
		d.transmit()
	}
	e.flushWrites()
	for _, d := range e.devices {
		if d.send() {
			busy = true
		}
	}
	e.publish(true)
	e.notify()
	e.closeBreached()
	return e.nextDeadline(busy), busy
}

// nextDeadline is the earliest of what queue pairs and links wait for.
func (e *Engine) nextDeadline(busy bool) int64 {
	if busy {
		return e.now
	}
	next := e.timers.next()
	for _, d := range e.devices {
		if t := d.link.NextDeadline(); t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	return next
}

// closeBreached closes the contexts whose clients broke the rules of their rings.
func (e *Engine) closeBreached() {
	for len(e.breached) > 0 {
		c := e.breached[len(e.breached)-1]
		e.breached = e.breached[:len(e.breached)-1]
		if c.closed {
			continue
		}
		sink, reason := c.events, c.fatal
		c.event(Event{Type: ib.EventDeviceFatal, Port: 1})
		c.Close()
		if sink != nil {
			sink.Killed(reason)
		}
	}
}

// Do runs f on the engine, between two steps, and returns when it is done. f must not
// block, nor call Do. Once Run has returned, and before it is called, f runs in the
// caller's goroutine, one at a time.
func (e *Engine) Do(f func()) {
	if e.config.Stepped {
		f()
		return
	}
	e.mail.do(f, e.Wake)
}

// post is Do without waiting.
func (e *Engine) post(f func()) {
	if e.config.Stepped {
		f()
		return
	}
	e.mail.post(f, e.Wake)
}

// runMail runs what other goroutines sent.
func (e *Engine) runPosted() bool {
	if !e.mail.waiting.Load() {
		return false
	}
	for _, f := range e.mail.take() {
		f()
	}
	return true
}

// Close ends the engine: every context hears a device-fatal event and is closed, links are
// closed. Run must have returned or not be called.
func (e *Engine) Close() error {
	var first error
	e.Do(func() {
		if e.devices == nil && e.ended {
			return
		}
		e.ended = true
		for _, d := range e.devices {
			if err := d.close(); err != nil && first == nil {
				first = err
			}
		}
		e.devices = nil
		// Two epochs let go of the last memory.
		e.io.Epoch()
		e.io.Epoch()
		e.poll.close()
	})
	return first
}

// A mailbox carries functions to the engine's goroutine. While that is not there, they run
// in the goroutine that sends them, under the lock.
type mailbox struct {
	waiting atomic.Bool // something is in queue, to look at without the lock

	mu      sync.Mutex
	running bool
	queue   []func()
	spare   []func()
}

func (m *mailbox) post(f func(), wake func()) {
	m.mu.Lock()
	if !m.running {
		defer m.mu.Unlock()
		f()
		return
	}
	m.queue = append(m.queue, f)
	m.waiting.Store(true)
	m.mu.Unlock()
	wake()
}

func (m *mailbox) do(f func(), wake func()) {
	done := make(chan struct{})
	m.post(func() { defer close(done); f() }, wake)
	<-done
}

// take returns what is queued. Only the engine calls it, and only until the next take
// is the slice its own.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue
	clear(m.spare)
	m.queue, m.spare = m.spare[:0], q
	m.waiting.Store(false)
	return q
}

// start says that the engine's goroutine is there; false if it is already.
func (m *mailbox) start() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.running
	m.running = true
	return !was
}

// stop says that the engine's goroutine goes away, and runs what is left.
func (m *mailbox) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = false
	for _, f := range m.queue {
		f()
	}
	m.queue = nil
	m.waiting.Store(false)
}
