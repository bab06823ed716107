package nic

import (
	"context"
	"runtime"
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
	l.keepPolling(s, now, now, 0)
	return l, s, aClientOn(l.processor)
}

// An engine that may not spin polls on after a message to a program on its processor.
func TestPreemptedEnginePollsForAProgramOnItsProcessor(t *testing.T) {
	pin(t)
	const now = int64(1e9)
	s := aPreemptedSpinner(now)
	var l lender
	if l.keepPolling(s, now, now, 0) {
		t.Error("polls without a message")
	}
	l.noteMessage(aClientOn(0))
	l.noteMessage(aClientOn(l.processor + 1))
	l.noteMessage(nil)
	if l.keepPolling(s, now, now, 0) || l.lend(now, 0) {
		t.Error("polls for a program on another processor")
	}
	l.noteMessage(aClientOn(l.processor))
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
	if l.keepPolling(s, s.noSpin.until, s.noSpin.until, 0) || l.processor != 0 {
		t.Error("still lends when it may spin again")
	}
}

func TestEngineLendsOnceForAMessage(t *testing.T) {
	const now = int64(1e9)
	l, s, c := aLender(t, now)
	l.noteMessage(c)
	if l.lend(now, now+lendTime-1) {
		t.Error("lends right before a deadline")
	}
	if !l.lend(now, now+lendTime) || *word(c.opt.Doorbell, abi.DoorbellLent) != 0 {
		t.Error("does not lend, or does not end it")
	}
	if l.lend(now, 0) {
		t.Error("lends twice for one message")
	}
	l.noteMessage(c)
	l.forget(c)
	if l.lend(now, 0) {
		t.Error("lends to a context that is closed")
	}
	l.noteMessage(c)
	l.noteLent(now, interrupted)
	if l.keepPolling(s, now, now, 0) || l.lend(now, 0) {
		t.Error("lends again after a program kept the processor")
	}
	if !s.preempted(now + minBackoff/20) {
		t.Error("the spinner's state changed")
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
		l.noteMessage(c)
		l.lend(now, 0)
	}
}

// A running engine that may not spin lends its processor after a message. The clock, which it reads
// after each step and after it has lent, says that the program kept the processor: the engine notes
// that.
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
			e.lender.noteMessage(c)
		case 3: // after it has lent, or after the second step
			now += interrupted
			stop()
		}
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if e.lender.noLending.until == 0 {
		t.Error("the engine did not lend its processor")
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
