package wire

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"softroce/packet"
	"softroce/wire/fault"
)

// A Shape is the rate and the delay of an emulated port.
type Shape struct {
	Rate  int64         // bits per second in each direction, with Ethernet headers; 0 means unlimited
	Delay time.Duration // of each packet in each direction
}

// MaxShapeDelay is the longest delay.
const MaxShapeDelay = 10 * time.Second

// shapeBurst is how many bytes a port passes at once if it was idle before: a super-packet.
const shapeBurst = 64 << 10

// shapeLate is how much an engine that was late makes up for: about as long as another thread may
// keep its processor.
const shapeLate = 5 * time.Millisecond

// maxShapeQueued is how many packets of each direction may be on their way. Send takes no
// more then, and received ones wait in the link below.
const maxShapeQueued = 16384

// ShapedLink is middleware that gives a link the rate and the delay of a slower port. No packet is
// lost: the link takes no more than its rate, and received packets wait in the link below.
type ShapedLink struct {
	inner  Link
	delay  int64
	tx, rx bucket
	queue  delayLine[txCopy]
	held   heldPackets[*txCopy]

	txFrames  [faultBatch]TxFrame
	rxFrames  [faultBatch]RxFrame // from the link
	rxN, rxI  int                 // frames in rxFrames, and the next one to pass
	arriving  delayLine[rxCopy]
	delivered int   // how many packets of arriving the last Receive has returned
	more      bool  // since the last Receive, a sender that has more to send has sent
	blocked   int64 // when Send takes frames again; 0 if it did not refuse any
	retry     int64 // when the link is offered packets again that it did not take; 0 if there are none
	now       int64
}

// NewShapedLink wraps a link.
func NewShapedLink(inner Link, s Shape) *ShapedLink {
	return &ShapedLink{inner: inner, delay: int64(s.Delay), tx: newBucket(s.Rate), rx: newBucket(s.Rate)}
}

// A bucket limits a direction to a rate, with bursts of shapeBurst bytes. Packets that waited make
// up for an engine that is late: a port would have sent them in the meantime.
type bucket struct {
	rate   int64 // bits per second; 0: unlimited
	burst  int64 // ns that shapeBurst bytes take
	idle   int64 // when all that has passed would have been sent at exactly this rate
	waits  bool  // a packet waits
	empty  int64 // when there was no packet left that waits
	now    int64 // of the last take
	passed int   // bytes at now
}

func newBucket(rate int64) bucket {
	b := bucket{rate: rate}
	if rate > 0 {
		b.burst = b.time(shapeBurst)
	}
	return b
}

// time returns how long bytes take.
func (b *bucket) time(bytes int) int64 {
	return int64(float64(bytes) * 8e9 / float64(b.rate))
}

// take counts a packet, and returns false if it has to wait.
func (b *bucket) take(now int64, bytes int) bool {
	if b.rate == 0 {
		return true
	}
	if now != b.now {
		b.now, b.passed = now, 0
	}
	if b.idle > now || b.passed >= shapeBurst {
		b.waits = true
		return false
	}
	late := int64(shapeLate)
	if !b.waits { // what is left of it shrinks while no packet waits
		late = min(late, b.empty-b.idle) - (now - b.empty)
	}
	b.idle = max(b.idle, now-max(b.burst, late)) + b.time(bytes)
	b.passed += bytes
	return true
}

// drained notes that no packet waits.
func (b *bucket) drained(now int64) { b.waits, b.empty = false, now }

// giveBack undoes take, for a packet that did not pass after all.
func (b *bucket) giveBack(bytes int) {
	if b.rate > 0 {
		b.idle -= b.time(bytes)
	}
}

// next returns when a packet that was refused may pass. It is half a burst later than it could be,
// so that several pass then.
func (b *bucket) next() int64 { return b.idle + b.burst/2 }

// A delayLine holds copied packets until their time. It reuses their buffers.
type delayLine[T any] struct {
	packets []*T
	due     []int64
	first   int // packets before it have left
	free    []*T
}

func (d *delayLine[T]) len() int { return len(d.packets) - d.first }

// add returns a packet to fill that is due at a time, not before the others.
func (d *delayLine[T]) add(due int64) *T {
	var p *T
	if n := len(d.free); n > 0 {
		p, d.free = d.free[n-1], d.free[:n-1]
	} else {
		p = new(T)
	}
	d.packets, d.due = append(d.packets, p), append(d.due, due)
	return p
}

// ready returns the packets, up to most, that are due.
func (d *delayLine[T]) ready(now int64, most int) []*T {
	n := 0
	for n < min(most, d.len()) && d.due[d.first+n] <= now {
		n++
	}
	return d.packets[d.first : d.first+n]
}

// remove removes the oldest n packets, whose buffers are reused.
func (d *delayLine[T]) remove(n int) {
	d.free = append(d.free, d.packets[d.first:d.first+n]...)
	d.drop(n)
}

// drop removes the oldest n packets, which belong to the caller.
func (d *delayLine[T]) drop(n int) {
	d.first += n
	if d.first > len(d.packets)/2 {
		d.packets = append(d.packets[:0], d.packets[d.first:]...)
		d.due = append(d.due[:0], d.due[d.first:]...)
		d.first = 0
	}
}

// deadline returns when the oldest packet is due, 0 if there is none.
func (d *delayLine[T]) deadline() int64 {
	if d.len() == 0 {
		return 0
	}
	return d.due[d.first]
}

// Send implements Link.
func (s *ShapedLink) Send(now int64, batch []TxFrame) (int, error) {
	s.now, s.blocked = now, 0
	if err := s.sendDue(now); err != nil {
		return 0, err
	}
	n := 0
	for n < len(batch) && (s.delay == 0 || s.queue.len()+s.held.n+n < maxShapeQueued) && s.tx.take(now, frameLen(&batch[n])) {
		n++
	}
	switch {
	case n < len(batch):
		s.blocked = max(s.tx.next(), now+1)
	case n > 0 && batch[n-1].More:
		s.tx.waits, s.more = true, true
	default:
		s.tx.drained(now)
	}
	if s.delay == 0 {
		taken, err := s.inner.Send(now, batch[:n])
		for i := taken; i < n; i++ {
			s.tx.giveBack(frameLen(&batch[i]))
		}
		return taken, err
	}
	for i := range n {
		s.queue.add(now + s.delay).set(&batch[i])
	}
	return n, nil
}

// frameLen returns the length of a frame with its Ethernet header.
func frameLen(f *TxFrame) int { return packet.EthernetLen + f.IPLen() }

// sendDue sends the packets whose delay is over. Those of a paused priority are held, so that
// others pass them.
func (s *ShapedLink) sendDue(now int64) error {
	s.retry = 0
	if s.held.n > 0 {
		congested, err := s.held.send(^Paused(s.inner), len(s.txFrames), func(l []*txCopy) (int, error) {
			n, err := s.sendPackets(now, l)
			s.queue.free = append(s.queue.free, l[:n]...)
			return n, err
		})
		if err != nil {
			return err
		}
		if congested {
			s.retry = now + faultRetryInterval
		}
	}
	for {
		ready := s.queue.ready(now, len(s.txFrames))
		n := 0
		for n < len(ready) && !s.held.waits(s.inner, ready[n].Path) {
			n++
		}
		sent, err := s.sendPackets(now, ready[:n])
		s.queue.remove(sent)
		if ready = s.queue.ready(now, 1); err != nil || len(ready) == 0 {
			return err
		}
		if p := ready[0]; s.held.waits(s.inner, p.Path) {
			s.held.hold(p.Path.SwitchPriority(), p)
			s.queue.drop(1)
		} else if sent < n { // the link is congested
			s.retry = now + faultRetryInterval
			return nil
		}
	}
}

// sendPackets sends up to faultBatch packets and returns how many the link took.
func (s *ShapedLink) sendPackets(now int64, l []*txCopy) (int, error) {
	if len(l) == 0 {
		return 0, nil
	}
	for i, p := range l {
		s.txFrames[i] = p.TxFrame
	}
	return s.inner.Send(now, s.txFrames[:len(l)])
}

// Receive implements Link.
func (s *ShapedLink) Receive(now int64, batch []RxFrame) (int, error) {
	s.now = now
	if s.tx.waits && s.blocked == 0 && !s.more {
		s.tx.drained(now) // the sender had no more to send after all
	}
	s.more = false
	if s.blocked <= now {
		s.blocked = 0 // the sender may have no more to send
	}
	if err := s.sendDue(now); err != nil {
		return 0, err
	}
	if s.delay == 0 && s.rx.rate == 0 {
		return s.inner.Receive(now, batch)
	}
	s.arriving.remove(s.delivered)
	s.delivered = 0
	for {
		n, err := s.pass(now, batch)
		if n == 0 && s.rxI < s.rxN && s.rx.idle <= now && s.arriving.len() < maxShapeQueued {
			return 0, ErrUnread // the port would have passed it before now
		}
		if n > 0 || err != nil || s.rxI < s.rxN || len(batch) == 0 || s.arriving.len() >= maxShapeQueued {
			return n, err
		}
		s.rxI = 0
		if s.rxN, err = s.inner.Receive(now, s.rxFrames[:]); s.rxN == 0 || err != nil {
			if err == nil {
				s.rx.drained(now)
			}
			return 0, err
		}
	}
}

// pass lets received packets pass as far as the rate permits, and fills batch with those whose
// delay is over.
func (s *ShapedLink) pass(now int64, batch []RxFrame) (n int, err error) {
	for s.rxI < s.rxN && s.arriving.len() < maxShapeQueued && (s.delay > 0 || n < len(batch)) {
		f := &s.rxFrames[s.rxI]
		if !s.rx.take(now, packet.EthernetLen+f.ipLen()) {
			break
		}
		s.rxI++
		if s.delay > 0 {
			s.arriving.add(now + s.delay).setReceived(f)
			continue
		}
		batch[n] = *f
		n++
	}
	if s.delay == 0 {
		return n, nil
	}
	ready := s.arriving.ready(now, len(batch))
	for i, p := range ready {
		batch[i] = p.RxFrame
	}
	s.delivered = len(ready)
	return len(ready), nil
}

// NextDeadline implements Link. While received packets wait for the rate or for room, the link is
// not asked for more.
func (s *ShapedLink) NextDeadline() int64 {
	t := s.blocked
	if s.retry != 0 {
		t = earlier(t, s.retry)
	} else {
		t = earlier(t, s.queue.deadline())
	}
	if s.retry == 0 && s.held.priorities&^Paused(s.inner) != 0 {
		t = earlier(t, max(1, s.now))
	}
	if s.delivered < s.arriving.len() {
		t = earlier(t, max(1, s.arriving.due[s.arriving.first+s.delivered]))
	}
	switch {
	case s.arriving.len() >= maxShapeQueued:
		return t
	case s.rxI < s.rxN:
		return earlier(t, max(1, s.now, s.rx.next()))
	}
	return earlier(t, s.inner.NextDeadline())
}

// Noting implements Noter.
func (s *ShapedLink) Noting() bool { return NoterOf(s.inner).Noting() }

// NewMark implements Noter.
func (s *ShapedLink) NewMark() uint64 { return NoterOf(s.inner).NewMark() }

// Note implements Noter.
func (s *ShapedLink) Note(now int64, mark uint64, n *fault.Note) { NoterOf(s.inner).Note(now, mark, n) }

// CopyPayload implements Link.
func (s *ShapedLink) CopyPayload() { s.inner.CopyPayload() }

// HoldsReferences implements Referrer.
func (s *ShapedLink) HoldsReferences() bool { return s.rxI < s.rxN || HoldsReferences(s.inner) }

// AppendFDs implements Link.
func (s *ShapedLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return s.inner.AppendFDs(fds) }

// OnReady implements Link.
func (s *ShapedLink) OnReady(f func()) { s.inner.OnReady(f) }

// Paused implements Pauser.
func (s *ShapedLink) Paused() uint8 { return s.held.paused(s.inner) }

// Capabilities implements Link.
func (s *ShapedLink) Capabilities() Capabilities { return s.inner.Capabilities() }

// Counters implements Counted.
func (s *ShapedLink) Counters() *LinkCounters { return linkCounters(s.inner) }

// Close closes the link. Packets on their way are lost.
func (s *ShapedLink) Close() error {
	s.queue, s.arriving, s.held = delayLine[txCopy]{}, delayLine[rxCopy]{}, heldPackets[*txCopy]{}
	s.rxN, s.rxI, s.delivered, s.blocked, s.retry = 0, 0, 0, 0, 0
	return s.inner.Close()
}

// Join implements Multicaster.
func (s *ShapedLink) Join(group netip.Addr) error { return Join(s.inner, group) }

// Leave implements Multicaster.
func (s *ShapedLink) Leave(group netip.Addr) { Leave(s.inner, group) }
