package wire

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/internal/sharelock"
	"softroce/packet"
	"softroce/wire/fault"
)

const (
	faultBatch = 64

	// faultRetryInterval is how long a FaultLink waits before it offers queued packets again to a
	// link that took none.
	faultRetryInterval = 50_000 // ns
)

// FaultLink is middleware that applies a fault program to the packets that pass it. It wraps a
// CaptureLink, so that a capture shows what was on the wire: it lacks packets that a rule dropped
// on send, and has those that a rule dropped on receive.
//
// A packet takes these steps, in each direction:
//
//  1. Queued packets whose time has come go first.
//  2. The program is evaluated, which yields a verdict.
//  3. A packet on which no rule acts passes as it is, without a copy.
//  4. Any other packet is copied, changed, and queued: until the next call, until a time, or until
//     later packets of its flow have passed.
//  5. Each packet that passes may release packets that wait to be overtaken.
//
// A FaultLink is deterministic: it depends on the program and on the calls, their packets and their
// times alone.
type FaultLink struct {
	inner     Link
	noter     Noter
	rules     *faultRules
	info      fault.PacketInfo // of the current packet
	verdict   fault.Verdict    // on the current packet
	now       int64
	own       LinkCounters
	total     LinkCounters
	tx        faultQueue[*txCopy]
	held      heldPackets[queuedPacket[*txCopy]]
	heldBack  bool // the link has not taken all held packets that it may send
	txSeq     uint64
	txFrames  [faultBatch]TxFrame
	rx        faultQueue[*rxCopy]
	rxSeq     uint64
	rxFrames  [faultBatch]RxFrame // from the link
	rxN, rxI  int                 // frames in rxFrames, and the next one to evaluate
	delivered []*rxCopy           // by the last Receive, reused after the next
	divider   runDivider
}

// faultRules are the rules of a FaultLink, which those of the other slices of a NIC share. Then a
// lock is taken for each packet.
type faultRules struct {
	fault.Evaluator
	newProgram atomic.Pointer[fault.Program]
	mu         sharelock.Mutex
}

// NewFaultLink wraps a link. A nil program has no rules.
func NewFaultLink(inner Link, p *fault.Program) *FaultLink {
	return &FaultLink{inner: inner, noter: NoterOf(inner), rules: &faultRules{Evaluator: fault.NewEvaluator(p)}}
}

// Share wraps the link of another slice of the NIC. The rules, with what they have counted, are
// those of f. Neither link may be in use by its goroutine.
func (f *FaultLink) Share(inner Link) *FaultLink {
	f.rules.mu.Share()
	s := &FaultLink{inner: inner, noter: NoterOf(inner), rules: f.rules}
	s.info.Owner = f.info.Owner
	return s
}

// SetProgram replaces the program and resets the rules' counters. Queued packets stay queued. It
// may be called from any goroutine, and takes effect with the next Send or Receive.
func (f *FaultLink) SetProgram(p *fault.Program) {
	if p == nil {
		p = &fault.Program{}
	}
	f.rules.newProgram.Store(p)
}

// OnFirst sets a function that the link calls when a rule acts for the first time. It must not
// block.
func (f *FaultLink) OnFirst(fn func(*fault.Rule)) { f.rules.OnFirst = fn }

// SetOwner sets a function that returns the program whose queue pair has a number, 0 if there is
// none. Without it, rules for clients match no packet.
func (f *FaultLink) SetOwner(fn func(qpn uint32) (pid int, comm string)) { f.info.Owner = fn }

// Add adds the rules of a program behind the others, whose counters stay. It is for the goroutine
// that calls Send and Receive.
func (f *FaultLink) Add(now int64, p *fault.Program) { f.rules.Add(now, p) }

// Remove removes the rule with an ID and reports whether there was one. Packets that it has stalled
// pass next; what other rules have queued stays queued. It is for the goroutine that calls Send and
// Receive.
func (f *FaultLink) Remove(id int) bool {
	if !f.rules.Remove(id) {
		return false
	}
	f.Release(id)
	return true
}

// Release lets the packets pass next that a rule which was removed has stalled.
func (f *FaultLink) Release(id int) {
	f.tx.release(id, f.now)
	f.rx.release(id, f.now)
}

// RuleCounters returns what each rule did, in the order of the program. It is for the goroutine
// that calls Send and Receive.
func (f *FaultLink) RuleCounters() []fault.RuleCounters { return f.rules.Counters() }

// begin is the first step of Send and Receive.
func (f *FaultLink) begin(now int64) error {
	f.now = now
	f.rules.begin(now)
	if f.tx.empty() && f.held.n == 0 {
		return nil
	}
	f.tx.expire(now)
	return f.sendReady()
}

func (r *faultRules) begin(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.newProgram.Load(); p != nil && r.newProgram.CompareAndSwap(p, nil) {
		first := r.OnFirst
		r.Evaluator = fault.NewEvaluator(p)
		r.OnFirst = first
	}
	r.Begin(now)
}

// appliesTo is fault.Evaluator.AppliesTo.
func (r *faultRules) appliesTo(d fault.Direction) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.AppliesTo(d)
}

// evaluate sets the verdict on a packet of n bytes from BTH to pad.
func (f *FaultLink) evaluate(now int64, d fault.Direction, qpn uint32, network packet.Network, src, dst netip.Addr, head []byte, rest [][]byte, n, queued int) {
	p := &f.info
	p.Direction, p.Network, p.Src, p.Dst = d, network, src, dst
	p.Len, p.FrameLen = n, packet.EthernetLen+ipLen(n, network, dst)
	var payload []byte
	if len(rest) > 0 {
		payload = rest[0]
	}
	p.Parse(head, payload)
	if p.QPN = qpn; d == fault.Received {
		p.QPN = p.Header.DestQP
	}
	f.rules.mu.Lock()
	defer f.rules.mu.Unlock()
	f.rules.Evaluate(now, p, &f.verdict, fault.MaxQueued-queued)
}

// notes returns a note for each rule that acted on the current packet. Number 0 is the packet
// itself, all others are copies of it.
func (f *FaultLink) notes(number int) (l []*fault.Note) {
	for _, r := range f.verdict.Rules {
		n := &fault.Note{Rule: r.ID, Text: r.String(), Direction: f.info.Direction, Packet: f.info.String()}
		switch {
		case r == f.verdict.Overflowed:
			n.Result = "dropped because the queue is full"
		case number > 0:
			n.Result = fmt.Sprintf("copy %d", number)
		}
		l = append(l, n)
	}
	return l
}

// note gives notes about the frame with a mark to captures.
func (f *FaultLink) note(mark uint64, notes []*fault.Note) {
	for _, n := range notes {
		f.noter.Note(f.now, mark, n)
	}
}

// Noting implements Noter.
func (f *FaultLink) Noting() bool { return f.noter.Noting() }

// NewMark implements Noter.
func (f *FaultLink) NewMark() uint64 { return f.noter.NewMark() }

// Note implements Noter.
func (f *FaultLink) Note(now int64, mark uint64, n *fault.Note) { f.noter.Note(now, mark, n) }

// NextDeadline implements Link.
func (f *FaultLink) NextDeadline() int64 {
	d := earlier(f.inner.NextDeadline(), earlier(f.tx.deadline(), f.rx.deadline()))
	open := f.held.priorities&^Paused(f.inner) != 0
	if len(f.tx.ready()) > 0 || open && f.heldBack {
		d = earlier(d, f.now+faultRetryInterval)
	}
	if f.rxI < f.rxN || len(f.rx.ready()) > 0 || open && !f.heldBack {
		d = earlier(d, max(1, f.now))
	}
	return d
}

// CarriesRuns implements RunCarrier.
func (f *FaultLink) CarriesRuns(p *Path) bool {
	return !f.rules.appliesTo(fault.Sent) && CarriesRuns(f.inner, p)
}

// CopyPayload implements Link.
func (f *FaultLink) CopyPayload() { f.inner.CopyPayload() }

// HoldsReferences implements Referrer. Packets on which a rule has acted were copied.
func (f *FaultLink) HoldsReferences() bool { return f.rxI < f.rxN || HoldsReferences(f.inner) }

// AppendFDs implements Link.
func (f *FaultLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return f.inner.AppendFDs(fds) }

// OnReady implements Link.
func (f *FaultLink) OnReady(fn func()) { f.inner.OnReady(fn) }

// Paused implements Pauser.
func (f *FaultLink) Paused() uint8 { return f.held.paused(f.inner) }

// Capabilities implements Link.
func (f *FaultLink) Capabilities() Capabilities { return f.inner.Capabilities() }

// Counters implements Counted: the link's counters, and packets that rules dropped as DropFault.
func (f *FaultLink) Counters() *LinkCounters {
	f.total.setSum(linkCounters(f.inner), &f.own)
	return &f.total
}

// Close closes the link. Queued packets are lost.
func (f *FaultLink) Close() error {
	f.tx, f.rx = faultQueue[*txCopy]{}, faultQueue[*rxCopy]{}
	f.held = heldPackets[queuedPacket[*txCopy]]{}
	f.rxN, f.rxI = 0, 0
	return f.inner.Close()
}

// Join implements Multicaster.
func (f *FaultLink) Join(group netip.Addr) error { return Join(f.inner, group) }

// Leave implements Multicaster.
func (f *FaultLink) Leave(group netip.Addr) { Leave(f.inner, group) }
