package nic

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/packet"
)

// A lender lends the engine's processor to a program that waits for a message in its memory on the
// same one. Such a program does not yield, so a yield to it takes milliseconds, after which the
// engine does not spin for a while (see spinner). In that time the engine polls for as long as it
// would spin, if a program on its processor has got a message. It yields only once after each
// message: the program most likely replies, and its post yields back.
type lender struct {
	processor uint32   // that of the engine, plus 1; 0 while it does not lend
	polls     bool     // a program on the processor has got a message
	borrower  *Context // has got a message since it last had the processor; may be nil
	noLending backoff  // because a borrower kept the processor
}

// lendTime is about how long a borrower needs to reply, in nanoseconds. An engine that has a
// deadline earlier does not lend its processor.
const lendTime = 5e3

// noteMessage records that a message has arrived for a program, which may be nil.
func (l *lender) noteMessage(c *Context) {
	if c != nil && atomic.LoadUint32(word(c.opt.Doorbell, abi.DoorbellProcessor)) == l.processor {
		l.polls, l.borrower = true, c
	}
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
}

// keepPolling reports whether an engine that may not spin polls on at the time now, if no work was
// found since the time idle.
func (l *lender) keepPolling(s *spinner, now, idle, deadline int64) bool {
	if !s.preempted(now) || now < l.noLending.until {
		l.processor, l.polls, l.borrower = 0, false, nil
		return false
	}
	if l.processor == 0 {
		l.locate()
	}
	return l.polls && (now-idle < s.limit || s.isNear(now, deadline))
}

// locate finds the processor of the engine. After a change it has no borrower on the new one yet.
func (l *lender) locate() {
	var n uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0)
	if n+1 != l.processor {
		l.processor, l.polls, l.borrower = n+1, false, nil
	}
}

// noteSleep is for an engine that has slept: it may run on another processor.
func (l *lender) noteSleep() {
	if l.processor != 0 {
		l.locate()
	}
}

// lend yields to the borrower, if there is one, and reports whether it did.
func (l *lender) lend(now, deadline int64) bool {
	c := l.borrower
	if c == nil || deadline != 0 && deadline-now < lendTime {
		return false
	}
	l.borrower = nil
	lent := word(c.opt.Doorbell, abi.DoorbellLent)
	atomic.StoreUint32(lent, 1)
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	atomic.StoreUint32(lent, 0)
	l.locate()
	return true
}

// noteLent records how long the borrower had the processor. One that did not reply kept it.
func (l *lender) noteLent(now, took int64) {
	if took >= interrupted {
		l.noLending.extend(now)
	}
}
