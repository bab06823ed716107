package wire

import "sync/atomic"

const (
	faultBatch = 64
	// retryAfter is how long a Fault waits before it offers the link a packet again
	// that it did not take.
	retryAfter = 50_000 // ns
)

// Fault is middleware that does to packets what a FaultProgram says. It stands above
// Capture, so that a capture shows what was on the cable: not what Fault dropped when it
// was sent, but all that it dropped when it was received.
//
// The way of a packet, in each direction:
//
//  1. What has waited long enough goes before what comes now.
//  2. The rules are asked in their order. Drop ends it; the others add to a verdict.
//  3. A packet on which no rule acts goes on as it is, without a copy.
//  4. Any other is copied, changed, and placed: among those that go next, those that
//     have a time to go, or those that wait to be overtaken.
//  5. What goes by lets those go that waited for it.
//
// For a program, and the same calls with the same packets at the same times, a Fault
// does the same.
type FaultLink struct {
	inner Link
	judge judge
	subj  subject
	v     verdict
	now   int64
	own   LinkCounters
	total LinkCounters

	tx    holding[*heldTx]
	txSeq uint64
	out   [faultBatch]TxFrame

	rx       holding[*heldFrame]
	rxSeq    uint64
	in       [faultBatch]RxFrame
	inN, inI int          // of in, how many are there and how many were looked at
	lent     []*heldFrame // handed out by the last Receive

	next atomic.Pointer[FaultProgram]
}

// NewFault wraps a link. A nil program does nothing.
func NewFaultLink(inner Link, p *FaultProgram) *FaultLink {
	f := &FaultLink{inner: inner}
	f.load(p)
	return f
}

// SetProgram replaces the program and its counts; what is held stays held. It may be
// called from any goroutine and takes effect with the next Send or Receive.
func (f *FaultLink) SetProgram(p *FaultProgram) {
	if p == nil {
		p = &FaultProgram{}
	}
	f.next.Store(p)
}

func (f *FaultLink) load(p *FaultProgram) {
	if p == nil {
		p = &FaultProgram{}
	}
	f.judge = newJudge(p)
}

// Counts returns what each rule has done, in the order of the program. Like Counters it
// is for the goroutine that sends and receives.
func (f *FaultLink) Counts() []FaultCount {
	var c []FaultCount
	for _, r := range f.judge.rules {
		c = append(c, r.count)
	}
	return c
}

// begin is what both Send and Receive start with.
func (f *FaultLink) begin(now int64) error {
	f.now = now
	if p := f.next.Load(); p != nil && f.next.CompareAndSwap(p, nil) {
		f.load(p)
	}
	f.judge.begin(now)
	if f.tx.idle() {
		return nil
	}
	f.tx.expire(now)
	return f.sendReady()
}

// NextDeadline implements Link.
func (f *FaultLink) NextDeadline() int64 {
	d := earlier(f.inner.NextDeadline(), earlier(f.tx.next(), f.rx.next()))
	if len(f.tx.waiting()) > 0 {
		d = earlier(d, f.now+retryAfter)
	}
	if f.inI < f.inN || len(f.rx.waiting()) > 0 {
		d = earlier(d, max(1, f.now))
	}
	return d
}

// FD implements Link.
func (f *FaultLink) FD() int { return f.inner.FD() }

// OnReady implements Link.
func (f *FaultLink) OnReady(fn func()) { f.inner.OnReady(fn) }

// Capabilities implements Link.
func (f *FaultLink) Capabilities() Capabilities { return f.inner.Capabilities() }

// Counters implements Counted: the link's, and what rules dropped as DropFault.
func (f *FaultLink) Counters() *LinkCounters {
	f.total.sum(countersOf(f.inner), &f.own)
	return &f.total
}

// Close closes the link; what is held is lost.
func (f *FaultLink) Close() error {
	f.tx, f.rx = holding[*heldTx]{}, holding[*heldFrame]{}
	f.inN, f.inI = 0, 0
	return f.inner.Close()
}
