package nic

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// A mover moves threads to where messages take fewer switches of threads, while the engine has to
// lend its processor (see lender).
//
// If there are more runnable threads than processors, others share the engine's, and its only
// client runs on another one, the engine moves there. Otherwise each message would wait for these
// threads. While a processor is idle, the kernel moves the engine to it, and to join the client
// would be slower.
//
// Of several clients that mostly wait for completions, one on the engine's processor moves to that
// of another one. If they wait for each other, a message then takes one switch of threads, in the
// time in which the engine works. Otherwise it takes two, before and after.
type mover struct {
	here, elsewhere sighting // since the last update, on the engine's processor and on another one

	clients int  // what Engine.clients returned at the last update
	apart   bool // several clients, of which the last update found none here and one that waits

	settledUntil int64 // no thread moves, because one has moved
}

// A sighting is of a client that got a packet.
type sighting struct {
	client    *Context // nil: none
	published uint32   // its DoorbellProcessor
	at        int64
}

const (
	// settleTime is how long no thread moves after one has moved, in nanoseconds. The kernel's load
	// balancer moves one to the wrong processor again, in a guest with two about twelve times a
	// second, so this must be much shorter than the time between.
	settleTime = 2e6

	// apartSpins is how many times longer than EngineConfig.Spin the engine spins while it is apart
	// from its clients. If it sleeps, the kernel moves one of them to its processor.
	apartSpins = 20

	// A client that waits for completions for less than 1/waitingShare of the time has other work
	// to do. It would lack the processor for that if it shared one.
	waitingShare = 4

	// minSeen is how long before an update two clients have got their first packet if one moves, in
	// nanoseconds. What they have waited since then says little if that was just now.
	minSeen = 200e3

	// The client's count of the time that it has waited is ambiguous after this, in nanoseconds.
	waitedWrap = 60e6
)

// note records that a client has got a packet, and tells it where the engine runs. It reports
// whether the client was on the same processor when it last published its own.
func (m *mover) note(now int64, c *Context, processor uint32) (here bool) {
	engine := uint32(0)
	if m.clients > 1 {
		engine = processor
	}
	if w := word(c.opt.Doorbell, abi.DoorbellEngine); atomic.LoadUint32(w) != engine {
		atomic.StoreUint32(w, engine)
	}
	published := atomic.LoadUint32(word(c.opt.Doorbell, abi.DoorbellProcessor))
	here = published&abi.ProcessorMask == processor
	s := &m.elsewhere
	if here {
		s = &m.here
	}
	if s.client == nil && published&abi.ProcessorMask != 0 {
		*s = sighting{c, published, now}
	}
	return here
}

// forget is for a context whose doorbell page goes away.
func (m *mover) forget(c *Context) {
	for _, s := range []*sighting{&m.here, &m.elsewhere} {
		if s.client == c {
			*s = sighting{}
		}
	}
}

// reset is for an engine that has no need to lend its processor.
func (m *mover) reset() {
	m.here, m.elsewhere, m.apart = sighting{}, sighting{}, false
}

// processor returns that of the client, plus 1, or 0.
func (s *sighting) processor() uint32 { return s.published & abi.ProcessorMask }

// waits reports whether the client, at the time now, has stayed and mostly waited for completions.
func (s *sighting) waits(now int64) bool {
	if s.client == nil || now-s.at >= waitedWrap {
		return false
	}
	published := atomic.LoadUint32(word(s.client.opt.Doorbell, abi.DoorbellProcessor))
	waited := int64((published-s.published)/abi.ProcessorWaited) * abi.WaitedUnit
	return published&abi.ProcessorMask == s.processor() && waited >= (now-s.at)/waitingShare
}

// follows reports whether s should move to the processor of o: both wait, and have been seen for
// long enough to tell. A client of another user cannot make it move.
func (s *sighting) follows(o *sighting, now int64) bool {
	seen := now - max(s.at, o.at)
	return seen >= minSeen && s.waits(now) && o.waits(now) && s.client.opt.UID == o.client.opt.UID
}

// spinTime returns for how long the engine spins without work, which usually is limit.
func (m *mover) spinTime(limit int64) int64 {
	if m.apart {
		return apartSpins * limit
	}
	return limit
}

// update moves a thread that is on the wrong processor. served: a program on the engine's processor
// has got a packet lately. It reports whether it has moved the engine. A client moves itself.
func (m *mover) update(s *spinner, now int64, processor uint32, clients int, contended, served bool) (moved bool) {
	here, elsewhere, was := m.here, m.elsewhere, m.apart
	m.here, m.elsewhere, m.clients = sighting{}, sighting{}, clients
	several := clients > 1 && s.overcommit
	to := elsewhere.processor()
	m.apart = several && here.client == nil && to != processor && elsewhere.waits(now)
	if m.apart && !was { // the last move was right, and what kept it from spinning is over
		m.settledUntil = now
		s.noSpin.until, s.noSpin.lost = min(s.noSpin.until, now), 0
	}
	joins := s.overcommit && clients == 1 && to != 0 && !served
	leaves := several && here.processor() == processor && here.follows(&elsewhere, now)
	if !contended || to == processor || !joins && !leaves || now < m.settledUntil {
		return false
	}
	m.settledUntil = now + settleTime
	if joins {
		moveTo(int(to - 1))
		return true
	}
	atomic.StoreUint32(word(here.client.opt.Doorbell, abi.DoorbellMove), to)
	return false
}

// moveTo moves the thread to a processor, if it may run there. The kernel may move it again later.
func moveTo(processor int) {
	var may, only, set unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil || !may.IsSet(processor) {
		return
	}
	only.Set(processor)
	if unix.SchedSetaffinity(0, &only) != nil {
		return
	}
	if unix.SchedGetaffinity(0, &set) == nil && set == only { // not set by taskset meanwhile
		unix.SchedSetaffinity(0, &may)
	}
}
