package nic

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/packet"
)

// aPreemptedSpinner is that of an engine that may not spin at the time now.
func aPreemptedSpinner(now int64) *spinner {
	return &spinner{limit: 50e3, loadavg: -1, cpus: 2, checked: now, noSpin: backoff{until: now + 1e6}}
}

// aClientOn returns a context whose program has posted on a processor last.
func aClientOn(processor uint32) *Context {
	c := &Context{opt: ContextOptions{Doorbell: NewPage(abi.DoorbellSize)}}
	*word(c.opt.Doorbell, abi.DoorbellProcessor) = processor
	return c
}

// pin makes the test's thread run on one processor, until the test ends with the thread.
func pin(t *testing.T) {
	runtime.LockOSThread()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if set.IsSet(i) {
			set.Zero()
			set.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
}

// aLender returns that of an engine that may not spin at the time now, and a client on its
// processor, on which the test stays.
func aLender(t *testing.T, now int64) (*lender, *spinner, *Context) {
	pin(t)
	l, s := new(lender), aPreemptedSpinner(now)
	l.update(s, now, 1)
	return l, s, aClientOn(l.processor)
}

// An engine that may not spin polls on after a message to a program on its processor.
func TestPreemptedEnginePollsForAProgramOnItsProcessor(t *testing.T) {
	pin(t)
	const now = int64(1e9)
	s := aPreemptedSpinner(now)
	var l lender
	l.update(s, now, 1)
	if l.keepPolling(s, now, now, 0) {
		t.Error("polls without a message")
	}
	l.notePacket(now, aClientOn(0), true)
	l.notePacket(now, aClientOn(l.processor+1), true)
	l.notePacket(now, nil, true)
	l.notePacket(now, aClientOn(l.processor), false)
	if l.keepPolling(s, now, now, 0) || l.borrows(now, 0) {
		t.Error("polls for a program on another processor, or before the end of a message")
	}
	l.notePacket(now, aClientOn(l.processor), true)
	for _, c := range []struct {
		name                string
		now, idle, deadline int64
		want                bool
	}{
		{"just after work", now, now, 0, true},
		{"at the end of the time to spin", now + 49e3, now, 0, true},
		{"after it", now + 50e3, now, 0, false},
		{"after it, a deadline is near", now + 50e3, now, now + 149e3, true},
		{"after it, a deadline is far", now + 50e3, now, now + 150e3, false},
	} {
		if got := l.keepPolling(s, c.now, c.idle, c.deadline); got != c.want {
			t.Errorf("%s: polls %t, want %t", c.name, got, c.want)
		}
	}
	again := s.noSpin.until
	if l.keepPolling(s, again, again, 0) || l.borrows(again, 0) {
		t.Error("still lends when it may spin again")
	}
	s.checked++
	if l.update(s, again, 1); l.processor != 0 {
		t.Error("looks for programs on its processor although it need not share it")
	}
}

func TestEngineLendsOnceForAMessage(t *testing.T) {
	const now = int64(1e9)
	for _, c := range []struct {
		name     string
		then     func(*lender, *Context)
		deadline int64
		want     bool
	}{
		{"after a message", func(*lender, *Context) {}, 0, true},
		{"a deadline is far", func(*lender, *Context) {}, now + lendTime, true},
		{"a deadline is near", func(*lender, *Context) {}, now + lendTime - 1, false},
		{"after it has lent", func(l *lender, _ *Context) { l.lend(); l.noteLent(now, 0) }, 0, false},
		{"after another yield", func(l *lender, _ *Context) { l.noteYield(now) }, 0, false},
		{"after a sleep", func(l *lender, _ *Context) { l.noteSleep(now) }, 0, false},
		{"the context is closed", func(l *lender, c *Context) { l.forget(c) }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, _, client := aLender(t, now)
			l.notePacket(now, client, true)
			if c.then(l, client); l.borrows(now, c.deadline) != c.want {
				t.Errorf("lends %t, want %t", !c.want, c.want)
			}
		})
	}
}

// To a program that has kept the processor the engine lends it no more for a while.
func TestEngineDoesNotLendToOneThatKeepsTheProcessor(t *testing.T) {
	const now = int64(1e9)
	for _, c := range []struct {
		name string
		took []int64
		want bool
	}{
		{"until a tick", []int64{kept}, false},
		{"for long, once", []int64{kept - 1}, true},
		{"for long, twice", []int64{kept - 1, kept - 1}, false},
		{"less long, eight times", slices.Repeat([]int64{interrupted}, 8), false},
		{"for a short time, eight times", slices.Repeat([]int64{interrupted - 1}, 8), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, s, client := aLender(t, now)
			s.noSpin.until = now + 2*kept
			at, before := now, s.noSpin
			for _, took := range c.took {
				l.notePacket(at, client, true)
				at += took
				l.noteLent(at, took)
			}
			l.notePacket(at, client, true)
			if l.borrows(at, 0) != c.want || l.keepPolling(s, at, at, 0) != c.want {
				t.Errorf("lends and polls %t, want %t", !c.want, c.want)
			}
			if s.noSpin != before {
				t.Error("the spinner's state changed")
			}
		})
	}
}

// A program sees that the processor is lent to it while it has it, and the engine goes on when it
// yields.
func TestBorrowerSeesThatTheProcessorIsLent(t *testing.T) {
	AddProc(t)
	const now = int64(1e9)
	l, _, c := aLender(t, now)
	var seen atomic.Bool
	go func() {
		pin(t)
		for lent := word(c.opt.Doorbell, abi.DoorbellLent); atomic.LoadUint32(lent) == 0; {
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		seen.Store(true)
	}()
	for start := time.Now(); !seen.Load(); {
		if time.Since(start) > 30*time.Second {
			t.Fatal("a program on the processor never had it with the mark")
		}
		l.notePacket(now, c, true)
		l.lend()
	}
}

// The time for which a running engine lends its processor is idle time.
func TestRunningEngineLendsItsProcessor(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var e *Engine
	c := aClientOn(0)
	now, reads := int64(1), 0
	e, err := NewEngine(EngineConfig{Clock: func() int64 {
		switch reads++; reads {
		case 1: // before the first step
			e.spin.noSpin.until = now + minBackoff
			e.lender.locate()
			*word(c.opt.Doorbell, abi.DoorbellProcessor) = e.lender.processor
			e.lender.notePacket(now, c, true)
		case 2: // after the first step
			now += 100
		case 4: // after it has lent
			now += interrupted
			stop()
		}
		return now
	}})
	runNewEngine(ctx, t, e, err)
	if l := &e.lender; l.borrower != nil || l.noLending.resumed != now {
		t.Error("the engine did not lend its processor, or does not know for how long")
	}
	if busy, idle := e.busy.Load(), e.idle.Load(); busy != 0 || idle != 100+interrupted {
		t.Errorf("%d ns busy and %d idle, want 0 and %d", busy, idle, int64(100+interrupted))
	}
}

// runNewEngine runs what NewEngine has returned until ctx ends.
func runNewEngine(ctx context.Context, t *testing.T, e *Engine, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// While the engine sleeps nothing can interrupt it, so this is not time between interruptions.
func TestSleepIsNotTimeBetweenInterruptions(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	const slept = 7e6
	var e *Engine
	now, reads := int64(1e9), 0
	e, err := NewEngine(EngineConfig{Clock: func() int64 {
		switch reads++; reads {
		case 3: // before the engine sleeps
			e.Wake()
		case 4: // after it has slept
			now += slept
			stop()
		}
		return now
	}})
	runNewEngine(ctx, t, e, err)
	for name, b := range map[string]*backoff{"spin": &e.spin.noSpin, "lend": &e.lender.noLending} {
		if b.resumed != slept {
			t.Errorf("%s: %d ns asleep, want %d", name, b.resumed, int64(slept))
		}
		for range 6 {
			now += slept
			b.noteSleep(slept)
			now += 1.5 * interrupted
			b.noteInterruption(now, 1.5*interrupted)
		}
		if now >= b.until {
			t.Errorf("%s: six interruptions between sleeps are tolerated", name)
		}
	}
}

// An engine that spins yields to programs on its processor if there is something new for them, or
// for a while nothing was, or if none of them has got a packet lately.
func TestEngineKeepsItsProcessorWithoutNews(t *testing.T) {
	const now = int64(1e9)
	for _, c := range []struct {
		name            string
		served, yielded int64 // how long ago
		news            bool
		want            bool
	}{
		{"nothing new", 1000, 500, false, true},
		{"news", 1000, 500, true, false},
		{"the last yield is nearly too old", keepTime, keepTime - 1, false, true},
		{"the last yield is too old", keepTime, keepTime, false, false},
		{"the last packet is nearly too old", servedTime - 1, 500, false, true},
		{"the last packet is too old", servedTime, 500, false, false},
	} {
		l := lender{processor: 1}
		l.notePacket(now-c.served, aClientOn(1), true)
		l.noteYield(now - c.yielded)
		if c.news {
			l.news = true
		}
		if got := l.keepProcessor(now); got != c.want {
			t.Errorf("%s: keeps the processor %t, want %t", c.name, got, c.want)
		}
	}
	l := lender{processor: 1}
	l.noteYield(now)
	l.notePacket(now, aClientOn(2), true)
	if l.news || l.keepProcessor(now) {
		t.Error("counts a packet for a program on another processor")
	}
	if l.notePacket(now, aClientOn(1), false); !l.news {
		t.Error("does not count a packet for a program on the processor")
	}
}

func TestMessagesEndWithRequests(t *testing.T) {
	for operation, want := range map[packet.Opcode]bool{
		packet.WriteOnly: true, packet.WriteLast: true, packet.WriteFirst: false, packet.WriteMiddle: false,
		packet.SendOnly: true, packet.Acknowledge: false, packet.ReadResponseOnly: false,
	} {
		o := packet.Opcode(packet.RC) | operation
		if got := endsMessage(o); got != want {
			t.Errorf("%s: %t, want %t", o.Info().Name, got, want)
		}
	}
}
