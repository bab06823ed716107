package nic

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// An engine joins its only client on another processor if other threads use its own, and none is
// idle.
func TestEngineJoinsItsClient(t *testing.T) {
	const far = 9 + 1<<15 // a processor, plus 1, that does not exist
	for _, c := range []struct {
		name       string
		packets    bool
		shared     bool
		overcommit bool
		clients    int
		here       bool // so is another program, which got a packet
		moves      bool
	}{
		{"an only client", true, true, true, 1, false, true},
		{"one without packets", false, true, true, 1, false, false},
		{"the processor is not shared", true, false, true, 1, false, false},
		{"there are idle processors", true, true, false, 1, false, false},
		{"several clients", true, true, true, 2, false, false},
		{"another program on the processor", true, true, true, 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pin(t)
			l, s, now := lender{}, spinner{limit: 50e3, overcommit: c.overcommit, shared: c.shared}, int64(1e9)
			l.locate()
			client := aClientOn(far)
			for i := range 10 {
				now += overcommitCheck
				s.checked = now
				if c.packets {
					l.notePacket(now, client, true)
				}
				if c.here {
					l.notePacket(now, aClientOn(l.processor), true)
				}
				settled := i%(settleTime/overcommitCheck) == 0 // since the last move
				if moves := l.update(&s, now, c.clients); moves != (c.moves && settled) {
					t.Errorf("check %d: moves %t, want %t", i, moves, c.moves && settled)
				}
			}
		})
	}
}

// One check of the spinner is one update: another one of it does not forget who has got packets.
func TestOneCheckIsOneUpdate(t *testing.T) {
	pin(t)
	l, s, now := lender{}, spinner{limit: 50e3, overcommit: true, shared: true}, int64(1e9)
	l.locate()
	client := aClientOn(l.processor)
	for i, forgets := range []bool{true, false} {
		s.checked = now
		l.notePacket(now, client, true)
		l.update(&s, now, 2)
		if got := l.mover.here.client == nil; got != forgets {
			t.Errorf("update %d of a check: forgets the client %t, want %t", i, got, forgets)
		}
	}
}

// wait lets a client wait for completions for a time in nanoseconds.
func (c *Context) wait(t int64) {
	*word(c.opt.Doorbell, abi.DoorbellProcessor) += uint32(t/abi.WaitedUnit) * abi.ProcessorWaited
}

// A client on the engine's processor moves to that of another one if both wait.
func TestClientLeavesTheEnginesProcessor(t *testing.T) {
	const (
		waits      = overcommitCheck/waitingShare + abi.WaitedUnit
		works      = overcommitCheck/waitingShare - abi.WaitedUnit
		far        = 9 + 1<<15 // a processor, plus 1, that does not exist
		overcommit = true
	)
	for _, c := range []struct {
		name            string
		here, elsewhere int64  // how long each waits from one check to the next
		late            bool   // they get their first packet only then
		step            uint32 // by which the other one's processor changes then, and back
		users           [2]uint32
		shared          bool
		overcommit      bool
		clients         int
		moves           bool
	}{
		{"both wait", waits, waits, false, 0, [2]uint32{1, 1}, true, overcommit, 2, true},
		{"seen only just now", waits, waits, true, 0, [2]uint32{1, 1}, true, overcommit, 2, false},
		{"this one has other work", works, waits, false, 0, [2]uint32{1, 1}, true, overcommit, 2, false},
		{"the other one has other work", waits, works, false, 0, [2]uint32{1, 1}, true, overcommit, 2, false},
		{"the other one moves", waits, waits, false, 1, [2]uint32{1, 1}, true, overcommit, 2, false},
		{"different users", waits, waits, false, 0, [2]uint32{1, 2}, true, overcommit, 2, false},
		{"the processor is not shared", waits, waits, false, 0, [2]uint32{1, 1}, false, overcommit, 2, false},
		{"there are idle processors", waits, waits, false, 0, [2]uint32{1, 1}, true, false, 2, false},
		{"only one transmits", waits, waits, false, 0, [2]uint32{1, 1}, true, overcommit, 1, false},
		{"one engine of several", waits, waits, false, 0, [2]uint32{1, 1}, true, overcommit, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pin(t)
			l, s, now := lender{}, spinner{limit: 50e3, overcommit: c.overcommit, shared: c.shared}, int64(1e9)
			l.locate()
			here, elsewhere := aClientOn(l.processor), aClientOn(far)
			here.opt.UID, elsewhere.opt.UID = c.users[0], c.users[1]
			here.wait(65e6) // the counts overflow
			elsewhere.wait(66e6)
			packets := func() {
				for _, client := range []*Context{aClientOn(0), elsewhere, here} {
					l.notePacket(now, client, true)
				}
			}
			for i := range 4 {
				if !c.late {
					packets()
				}
				here.wait(c.here)
				elsewhere.wait(c.elsewhere)
				now += overcommitCheck
				packets() // the first ones count
				s.checked = now
				*word(elsewhere.opt.Doorbell, abi.DoorbellProcessor) += c.step
				l.update(&s, now, c.clients)
				*word(elsewhere.opt.Doorbell, abi.DoorbellProcessor) -= c.step
				want := uint32(0)
				if settled := i%(settleTime/overcommitCheck) == 0; c.moves && settled {
					want = far
				}
				move := word(here.opt.Doorbell, abi.DoorbellMove)
				if *move != want {
					t.Errorf("check %d: moves to %d, want %d", i, *move, want)
				}
				*move = 0
			}
			if *word(elsewhere.opt.Doorbell, abi.DoorbellMove) != 0 {
				t.Error("the other client moves")
			}
		})
	}
}

// The count of the time that a client has waited says nothing after it may have overflowed.
func TestWaitingClientIsForgotten(t *testing.T) {
	const now = int64(1e9)
	c := aClientOn(1)
	s := sighting{c, *word(c.opt.Doorbell, abi.DoorbellProcessor), now}
	c.wait(60e6)
	if !s.waits(now + waitedWrap - 1) {
		t.Error("a client does not wait that has waited all the time")
	}
	if s.waits(now + waitedWrap) {
		t.Error("waits although the count may have overflowed")
	}
}

// While several clients wait elsewhere, the engine spins for longer. When they have left it, what
// kept it from spinning is over, and one that comes to its processor moves again at once.
func TestEngineSpinsForLongerApartFromItsClients(t *testing.T) {
	pin(t)
	const far = 9 + 1<<15
	l, s, now := lender{}, spinner{limit: 50e3}, int64(1e9)
	l.locate()
	elsewhere := aClientOn(far)
	for _, c := range []struct {
		name        string
		at          uint32
		waits       bool
		overcommit  bool
		clients     int
		here        bool // so is another client
		apart, ends bool // the time without spinning ends
	}{
		{"several clients", far, true, true, 2, false, true, true},
		{"again", far, true, true, 2, false, true, false},
		{"one client", far, true, true, 1, false, false, false},
		{"it has other work", far, false, true, 2, false, false, false},
		{"another one here", far, true, true, 2, true, false, false},
		{"the engine has moved to it", l.processor, true, true, 2, false, false, false},
		{"there are idle processors", far, true, false, 2, false, false, false},
		{"several clients once more", far, true, true, 2, false, true, true},
	} {
		s.overcommit, s.shared = c.overcommit, true
		l.mover.settledUntil = now + 10*settleTime
		l.mover.elsewhere = sighting{elsewhere, c.at, now}
		*word(elsewhere.opt.Doorbell, abi.DoorbellProcessor) = c.at
		if c.waits {
			elsewhere.wait(overcommitCheck)
		}
		if c.here {
			l.notePacket(now, aClientOn(l.processor), true)
		}
		now += overcommitCheck
		s.checked = now
		s.noSpin = backoff{until: now + minBackoff, length: minBackoff, lost: maxLost}
		l.update(&s, now, c.clients)
		want := s.limit
		if c.apart {
			want *= apartSpins
		}
		if got := l.mover.spinTime(s.limit); got != want {
			t.Errorf("%s: spins for %d ns, want %d", c.name, got, want)
		}
		if free := l.mover.settledUntil <= now; free != c.ends {
			t.Errorf("%s: clients may move at once %t, want %t", c.name, free, c.ends)
		}
		if ends := s.noSpin == (backoff{until: now, length: minBackoff}); ends != c.ends {
			t.Errorf("%s: may spin at once %t, want %t", c.name, ends, c.ends)
		}
	}
	l.mover.apart = true
	l.processor++
	if l.locate(); l.mover.apart {
		t.Error("still apart after a move")
	}
}

// A packet tells a client where the engine is, if there are several clients. A context that closes
// is forgotten.
func TestClientKnowsTheEnginesProcessor(t *testing.T) {
	const now = int64(1e9)
	here, elsewhere := aClientOn(3), aClientOn(4)
	for clients, want := range []uint32{0, 0, 3, 0} {
		l := lender{processor: 3, mover: mover{clients: clients % 3}}
		for _, c := range []*Context{here, elsewhere} {
			l.notePacket(now, c, false)
			if at := *word(c.opt.Doorbell, abi.DoorbellEngine); at != want {
				t.Errorf("%d clients: engine on %d, want %d", clients%3, at, want)
			}
		}
		if l.mover.here.client != here || l.mover.elsewhere.client != elsewhere {
			t.Error("does not know where the clients run")
		}
		l.forget(here)
		l.forget(elsewhere)
		if m := &l.mover; m.here.client != nil || m.elsewhere.client != nil {
			t.Error("knows contexts that are closed")
		}
	}
}

// An engine that moves is on the other processor then, and may run where it could before.
func TestMoveKeepsAffinity(t *testing.T) {
	runtime.LockOSThread()
	var all, pinned, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("needs two processors")
	}
	other := func(n uint32) uint32 {
		for i := range uint32(1024) {
			if all.IsSet(int(i)) && i+1 != n {
				return i + 1
			}
		}
		panic("no other processor")
	}
	// The kernel may move the thread, too, so that a single success says little.
	for successes, start := 0, time.Now(); successes < 5; {
		l, s := lender{}, spinner{limit: 50e3, overcommit: true, shared: true}
		l.locate()
		to := other(l.processor)
		client := aClientOn(to)
		s.checked += overcommitCheck
		l.notePacket(s.checked, client, true)
		l.update(&s, s.checked, 1)
		if successes++; l.processor != to {
			successes = 0
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("the engine does not move")
		}
	}
	if unix.SchedGetaffinity(0, &now); now != all {
		t.Error("a move changed the affinity mask")
	}
	pin(t)
	unix.SchedGetaffinity(0, &pinned)
	for i := range 2048 {
		moveTo(i)
	}
	if unix.SchedGetaffinity(0, &now); now != pinned {
		t.Error("a move to a processor that the thread may not use changed its affinity mask")
	}
}
