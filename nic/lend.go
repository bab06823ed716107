package nic

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/packet"
)

// A lender decides when the engine's processor is for the programs that wait for messages on the
// same one. It does so while there are more runnable threads than processors, or if the engine was
// preempted (see spinner).
//
// A program that gets a message has the processor once: it most likely replies, and its post yields
// back. If it is the only client that transmits, it has it before the engine acknowledges, so that
// the reply leaves with the ACK. While there is nothing new for the programs on the processor, the
// engine keeps it for keepTime.
//
// Programs do not yield while they poll their memory, so a yield to one takes milliseconds if there
// is no message. After that the engine does not spin for a while. In that time it polls for as
// long as it would spin, if a program on its processor has got a message, and yields only after
// messages.
type lender struct {
	processor uint32   // that of the engine, plus 1; 0 while it has no need to lend it
	polls     bool     // a program on the processor has got a message
	borrower  *Context // has got a message since it last had the processor; may be nil
	noLending backoff  // because a borrower kept the processor

	served  int64 // when a packet last arrived for a program on the processor
	news    bool  // since programs last had the processor
	yielded int64 // when that was

	checked int64 // spinner.checked at the last update
	mover   mover
}

const (
	// lendTime is about how long a borrower needs to reply, in nanoseconds. An engine that has a
	// deadline earlier does not lend its processor.
	lendTime = 5e3

	// lendFrames is how many frames a step may have received if it lends the processor. Programs
	// that get more at a time do not wait for each message.
	lendFrames = 2

	// keepTime is how long the engine keeps the processor, in nanoseconds. The reply of a peer on
	// the same machine takes less.
	keepTime = 20e3

	// servedTime is after how many nanoseconds without a packet a program does not count as one on
	// the processor.
	servedTime = 1e6

	// A borrower that had the processor for kept, in nanoseconds, does not yield. It had it until a
	// tick of the kernel; they come every 1 to 10 ms.
	kept = 1e6
)

// notePacket records that a packet has arrived for a program, which may be nil. ends: it is the
// last of a message.
func (l *lender) notePacket(now int64, c *Context, ends bool) {
	if c == nil {
		return
	}
	if !l.mover.note(now, c, l.processor) {
		return
	}
	if ends {
		l.polls, l.borrower = true, c
	}
	l.served, l.news = now, true
}

// endsMessage reports whether a packet is the last of a message to a program.
func endsMessage(o packet.Opcode) bool {
	i := o.Info()
	return i.Request && i.Position.EndsMessage()
}

// forget is for a context whose doorbell page goes away.
func (l *lender) forget(c *Context) {
	if l.borrower == c {
		l.borrower = nil
	}
	l.mover.forget(c)
}

// keepPolling reports whether an engine that may not spin polls on at the time now, if no work was
// found since the time idle.
func (l *lender) keepPolling(s *spinner, now, idle, deadline int64) bool {
	if !s.preempted(now) || now < l.noLending.until {
		l.polls, l.borrower = false, nil
		return false
	}
	return l.polls && (now-idle < s.limit || s.isNear(now, deadline))
}

// keepProcessor reports whether an engine that spins does not yield at the time now.
func (l *lender) keepProcessor(now int64) bool {
	return !l.news && now-l.served < servedTime && now-l.yielded < keepTime
}

// update finds out, once per check of the spinner, whether the engine has to lend its processor,
// and moves threads that are on the wrong one. clients is what Engine.clients returns. It reports
// whether it has moved the engine, which takes time.
func (l *lender) update(s *spinner, now int64, clients int) (moved bool) {
	contended := s.preempted(now) || s.shared
	if s.checked == l.checked {
		return false
	}
	l.checked = s.checked
	if !s.overcommit && !contended {
		l.processor, l.polls, l.borrower, l.served = 0, false, nil, 0
		l.mover.reset()
		return false
	}
	l.locate()
	if !l.mover.update(s, now, l.processor, clients, contended, now-l.served < servedTime) {
		return false
	}
	l.locate()
	return true
}

// locate finds the processor of the engine. After a change it has no borrower on the new one yet.
func (l *lender) locate() {
	var n uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0)
	if n+1 != l.processor {
		l.processor, l.polls, l.borrower, l.served, l.mover.apart = n+1, false, nil, 0, false
	}
}

// noteSleep is for an engine that has slept, or has another thread: it may run on another
// processor.
func (l *lender) noteSleep(now int64) {
	if l.processor != 0 {
		l.locate()
		l.noteYield(now)
	}
}

// borrows reports whether there is a borrower to which the engine may lend its processor.
func (l *lender) borrows(now, deadline int64) bool {
	return l.borrower != nil && now >= l.noLending.until && (deadline == 0 || deadline-now >= lendTime)
}

// lend yields to the borrower.
func (l *lender) lend() {
	lent := word(l.borrower.opt.Doorbell, abi.DoorbellLent)
	atomic.StoreUint32(lent, 1)
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	atomic.StoreUint32(lent, 0)
	l.locate()
}

// noteYield records that the programs on the processor have had it.
func (l *lender) noteYield(now int64) { l.news, l.borrower, l.yielded = false, nil, now }

// noteLent records how long the borrower had the processor. It gets it no more for a while if it
// kept it.
func (l *lender) noteLent(now, took int64) {
	l.noteYield(now)
	switch {
	case took >= kept:
		l.noLending.extend(now)
	case took >= interrupted:
		l.noLending.noteInterruption(now, took)
	}
}
