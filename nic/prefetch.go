package nic

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"softroce/internal/prefetch"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A queue pair takes some thirty cache lines. Of thousands, most are not in the processor's cache
// when their turn or their packet comes, and each line that is then loaded alone takes as long as a
// good part of the work. So while an engine works for one queue pair, it starts to load the next
// ones: first the QP, and when that has arrived, what it points to.

// usedSize is how many bytes at the start of a QP packets and turns use.
const usedSize = unsafe.Offsetof(QP{}.init) + unsafe.Offsetof(QPInit{}.PD)

// payloadAtOnce is how many bytes of payload are prefetched at once: a third of a packet, because
// a turn has three calls. The processor loads 10 to 16 lines at a time, and waits if it is to load
// many more (docs/internals/performance.md has measurements).
const payloadAtOnce = 22 * prefetch.LineSize

// How far ahead in a received batch are the frames whose queue pair, whose state, and whose work
// request are loaded.
const (
	qpAhead    = 6
	stateAhead = 3
	wqeAhead   = 1
)

// prefetch starts to load q.
func (q *QP) prefetch() { prefetch.Range(unsafe.Pointer(q), usedSize) }

// prefetchState starts to load what q points to, of the transport's QP so many bytes. q should be
// in the cache.
func (q *QP) prefetchState(size uintptr) {
	prefetch.Range(unsafe.Pointer(q.t), size)
	if q.path != nil {
		prefetch.Range(unsafe.Pointer(q.path), unsafe.Sizeof(*q.path))
	}
}

// prefetchNext starts to load the state of the first queue pair of f, as prefetchState does, and
// the second queue pair.
func prefetchNext(f *fifo[QP], size uintptr) {
	first := f.first
	if first == nil {
		return
	}
	first.of.prefetchState(size)
	if first.next != nil {
		first.next.of.prefetch()
	}
}

// prefetchResponder starts to load what requests to q use. q should be in the cache.
func (q *QP) prefetchResponder() {
	q.prefetchState(transport.ResponderSize)
	if q.recv.ring != nil {
		prefetch.Range(unsafe.Pointer(q.recv.ring), unsafe.Sizeof(*q.recv.ring))
	}
}

// prefetchCredits starts to load what the credits of q's next ACK are computed from. The ring of
// its receive queue should be in the cache.
func (q *QP) prefetchCredits() {
	if q.recv.ring != nil && !q.recv.shared {
		prefetch.Lines(unsafe.Pointer(q.recv.ring.producer), 1)
	}
}

// prefetchSend starts to load the work request that q fetches next. q should be in the cache.
func (q *QP) prefetchSend() {
	if q.sq.producer == nil {
		return // it has no send queue
	}
	prefetch.Lines(unsafe.Pointer(q.sq.producer), 1)
	prefetch.Lines(unsafe.Pointer(&q.sq.slot(q.sqFetched)[0]), 2) // with a scatter/gather element
}

// prefetchPayload starts to load some of the payload that waits for the link, while several queue
// pairs of a client take turns: that of thousands is in no cache. It is called several times in
// each turn, so that the processor loads the payload while the engine works. While the link
// computes the ICRC there would be nothing else to do.
func (t *txState) prefetchPayload() {
	if !t.alternate || !t.icrc {
		return
	}
	if p := t.payload.next(t.data.frames[:t.data.filled], payloadAtOnce); p != nil {
		prefetch.Range(unsafe.Pointer(&p[0]), uintptr(len(p)))
	}
}

// A payloadCursor is a place in the payload of a batch.
type payloadCursor struct{ frame, piece, offset int }

// next returns the next bytes of payload, at most n, and nil at the end.
func (c *payloadCursor) next(frames []wire.TxFrame, n int) []byte {
	for c.frame < len(frames) {
		pieces := frames[c.frame].Payload
		if c.piece >= len(pieces) {
			*c = payloadCursor{frame: c.frame + 1}
			continue
		}
		piece := pieces[c.piece]
		if c.offset >= len(piece) { // or the frame was swapped for one with less payload
			c.piece, c.offset = c.piece+1, 0
			continue
		}
		p := piece[c.offset:min(c.offset+n, len(piece))]
		c.offset += len(p)
		return p
	}
	return nil
}

// prefetchRung starts to load what activate needs of the queue pairs whose bells are set, if there
// are several. first is the number of the first bell.
func (c *Context) prefetchRung(set uint64, first int) {
	if set&(set-1) == 0 {
		return
	}
	for ; set != 0; set &= set - 1 {
		n := first + bits.TrailingZeros64(set)
		if n < len(c.doorbells) && c.doorbells[n] != nil {
			q := c.doorbells[n]
			prefetch.Lines(unsafe.Pointer(q), 1)
			prefetch.Lines(unsafe.Pointer(&q.turn), 2)
		}
	}
}

// prefetchReceivers starts to load the receivers of frames behind those from i to next, which are
// for one queue pair.
func (d *Device) prefetchReceivers(batch []wire.RxFrame, i, next int) {
	qp, state := max(i+qpAhead, next), max(i+stateAhead, next)
	if i == 0 { // so far nothing was prefetched, and of these one has the queue pair of all
		qp, state = next-1, next-1
	}
	for ; qp < next+qpAhead && qp < len(batch); qp++ {
		if q, _ := d.coldReceiver(&batch[qp]); q != nil {
			q.prefetch()
		}
	}
	for ; state < next+stateAhead && state < len(batch); state++ {
		switch q, request := d.ownReceiver(&batch[state]); {
		case q == nil:
		case request:
			q.prefetchResponder()
		default:
			q.prefetchState(transport.QPSize)
		}
	}
	if wqe := next - 1 + wqeAhead; i > 0 && wqe < len(batch) {
		if q, request := d.ownReceiver(&batch[wqe]); q != nil && !request {
			q.t.PrefetchOldest()
		}
	}
}

// ownReceiver returns what coldReceiver does, but no queue pair of another slice, which a multicast
// frame may name: its engine changes what it points to. The queue pair should be in the cache.
func (d *Device) ownReceiver(f *wire.RxFrame) (q *QP, request bool) {
	if q, request = d.coldReceiver(f); q == nil || q.device != d {
		return nil, false
	}
	return q, request
}

// coldReceiver returns the queue pair that a frame is for, nil if there is none or it has received
// something recently, and whether the frame is a request. The frame is not checked yet.
func (d *Device) coldReceiver(f *wire.RxFrame) (q *QP, request bool) {
	if len(f.Head) < packet.BTHLen {
		return nil, false
	}
	qpn := binary.BigEndian.Uint32(f.Head[4:]) & packet.PSNMask // the destination, of as many bits
	if r := d.recent[qpn%uint32(len(d.recent))]; r != nil && r.qpn == qpn {
		return nil, false
	}
	return d.qps.get(qpn), packet.Opcode(f.Head[0]).Info().Request
}
