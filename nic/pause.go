package nic

import (
	"math/bits"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/wire"
)

// Priority flow control (PFC): a link may be paused for some priorities, and takes none of their
// frames then. Others must go on, and what is paused waits as long as the pause lasts, without a
// frame that is discarded.
//
//  1. Before a step transmits it asks the link which priorities are paused (updatePauses). They are
//     closed: their queue pairs get no transmit slots (txState.slot).
//  2. A queue pair that has met a closed priority in its turn, or whose replies are of one, is put
//     aside (setAside). Its timers run, and its work requests are flushed if it fails.
//  3. Frames that the link has refused because their priority is paused move to the backlog of the
//     priority, out of the way of others (moveToBacklogs). A priority stays closed to data until
//     its backlog is empty. So a backlog has no more frames than a step transmits, and replies.
//  4. When a priority opens, the queue pairs that were put aside have turns again. Its replies
//     overtake its backlog, and its backlog goes before new data.
//
// A link without PFC costs a comparison for each turn and each packet.

// A pauseState is what a device keeps of the pauses of its link.
type pauseState struct {
	aside    fifo[QP]
	backlogs []frameBatch // by priority; nil without PFC
}

// fullBacklog is how many frames of a backlog keep replies from being emitted, which a new pause
// would add to it.
const fullBacklog = txBatch

// updatePauses asks the link which priorities are paused.
func (d *Device) updatePauses() {
	t := &d.tx
	paused, closed := t.paused, t.closed
	t.paused = wire.Paused(d.link)
	t.closeToData()
	if paused&^t.paused == 0 && closed&^t.closed == 0 {
		return // no priority has opened
	}
	for !t.aside.empty() {
		q := t.aside.pop()
		t.activate(q)
		if !q.reply.queued && q.t.Replying() {
			t.due.push(&q.reply)
		}
	}
}

// openForReplies opens the priorities whose replies may be emitted, until updatePauses.
func (t *txState) openForReplies() {
	t.closed = t.paused
	for left := t.backlogged; left != 0; left &= left - 1 {
		if i := bits.TrailingZeros8(left); t.backlogs[i].waiting() >= fullBacklog {
			t.closed |= 1 << i
		}
	}
}

func (t *txState) closeToData() { t.closed = t.paused | t.backlogged }

// isClosed reports whether frames of the path must wait for a pause.
func (t *txState) isClosed(p *wire.Path) bool {
	return t.closed != 0 && t.closed>>p.SwitchPriority()&1 != 0
}

// meetsPause reports whether the next frame of q must wait for a pause.
func (t *txState) meetsPause(q *QP) bool {
	if t.closed == 0 {
		return false
	}
	p := q.route()
	return p != nil && t.isClosed(p)
}

// setAside keeps q, which meets a pause, from having turns until a priority opens.
func (t *txState) setAside(q *QP) {
	if !q.aside.queued {
		t.aside.push(&q.aside)
	}
}

// flushing reports whether q has work requests to flush.
func (q *QP) flushing() bool {
	return q.state == ib.QPSErr && (q.hasPosted() || !q.recv.shared && q.recv.ring.posted() > 0)
}

// opened reports whether a pause has ended since the step has asked for them.
func (d *Device) opened() bool { return d.tx.closed != 0 && d.tx.closed&^wire.Paused(d.link) != 0 }

// sendBacklogs sends the frames of backlogs whose pause has ended.
func (d *Device) sendBacklogs() (n int) {
	t := &d.tx
	open := t.backlogged
	if !d.disabled {
		open &^= wire.Paused(d.link)
	}
	for ; open != 0; open &= open - 1 {
		i := bits.TrailingZeros8(open)
		b := &t.backlogs[i]
		n += d.sendBatch(b)
		if b.empty() {
			b.sent, b.filled = 0, 0
			t.backlogged &^= 1 << i
		}
	}
	return n
}

// moveToBacklogs moves the frames that wait because their priority is paused, and sends those
// behind them. It returns how many were sent.
func (d *Device) moveToBacklogs() (n int) {
	t := &d.tx
	for !t.empty() {
		paused := wire.Paused(d.link)
		if paused == 0 || !t.moveToBacklogs(&t.replies, paused) && !t.moveToBacklogs(&t.data, paused) {
			break
		}
		n += d.sendBatch(&t.replies)
		if t.replies.empty() {
			n += d.sendBatch(&t.data)
		}
	}
	return n
}

// moveToBacklogs moves the waiting frames of paused priorities from a batch, and reports whether
// there were any. taken does not count them, as in discardResponses.
func (t *txState) moveToBacklogs(b *frameBatch, paused uint8) bool {
	kept := b.sent
	for i := b.sent; i < b.filled; i++ {
		priority := b.frames[i].Path.SwitchPriority()
		if paused>>priority&1 != 0 {
			t.backlogs[priority].takeFrom(b, i)
			t.backlogged |= 1 << priority
			t.closed |= 1 << priority
			continue
		}
		b.swap(kept, i)
		kept++
	}
	moved := kept != b.filled
	b.filled = kept
	return moved
}

// takeFrom adds frame i of another batch, which gets the storage of a free frame in exchange.
func (b *frameBatch) takeFrom(from *frameBatch, i int) {
	if b.filled == len(b.frames) && b.sent > 0 {
		for k := b.sent; k < b.filled; k++ {
			b.swap(k-b.sent, k)
		}
		b.sent, b.filled = 0, b.filled-b.sent
	}
	if b.filled == len(b.frames) {
		b.frames, b.copies = append(b.frames, wire.TxFrame{}), append(b.copies, copiedPayload{})
	}
	b.frames[b.filled], from.frames[i] = from.frames[i], b.frames[b.filled]
	if b.copies[b.filled].is = false; from.copies != nil {
		b.copies[b.filled], from.copies[i] = from.copies[i], b.copies[b.filled]
	}
	b.filled++
}

// inBacklog reports whether replies of q wait in the backlog of its priority. Others may not
// overtake them.
func (t *txState) inBacklog(q *QP) bool {
	if t.backlogged == 0 || q.path == nil {
		return false
	}
	b := &t.backlogs[q.path.SwitchPriority()]
	for i := b.sent; i < b.filled; i++ {
		if f := &b.frames[i]; f.QPN == q.qpn && !packet.Opcode(f.Head[0]).Info().Request {
			return true
		}
	}
	return false
}
