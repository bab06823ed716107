package nic

import (
	"encoding/binary"
	"math/bits"

	"softroce/packet"
	"softroce/wire"
)

const (
	// txBatch is the most frames that a step sends on one device.
	txBatch = 256

	// replyBatch is how many replies may overtake a frame that waits for the link. Together they
	// are about as long as a frame, so that replies cannot keep requests from being sent.
	replyBatch = 64

	// txStall is how long a link may accept no frames before the waiting ones are discarded: they
	// are outdated, and reliable services retransmit.
	txStall = 20e6 // ns
)

// txState is the transmit side of a device: who is to transmit, and the frames to send.
type txState struct {
	clients fifo[contextPart] // clients with active queue pairs, in the order of their turns
	due     fifo[QP]          // queue pairs that have replies to send
	into    *frameBatch       // the batch being filled
	open    *wire.TxFrame     // the frame being filled
	left    int               // bytes left in the turn of the current queue pair

	unread     bool  // the link does not read payload
	joins      bool  // the link makes super-packets
	congested  bool  // frames of earlier steps wait for the link
	mads       bool  // gsi has datagrams to send
	pfc        bool  // the link has PFC
	paused     uint8 // the priorities, a bit for each, that are paused
	backlogged uint8 // the priorities whose backlogs have frames
	closed     uint8 // the priorities that get no transmit slots

	data      frameBatch
	turn      int        // the longest turn of a queue pair, in bytes
	overtaken uint64     // data.taken when replies was last empty
	reserved  int        // frames of data for turns that wait
	stalled   int64      // since when the link has accepted nothing, 0 if it does accept
	replies   frameBatch // replies that overtake what waits in data

	pauseState

	// copyCost is how many times more a packet is taken to cost if only the kernel can copy its
	// payload. On a fabric, copying is all the work. A link to a network copies and computes the
	// ICRC anyway: there it is about 1.4 times (BenchmarkWire), less than a step may vary.
	copyCost int

	icrc      bool          // the link computes the ICRC
	alternate bool          // another queue pair of the client is ready
	payload   payloadCursor // of data, behind what was prefetched

	runsOn runsOn // of the last packet that could have begun a run

	waiting   []waitingTurn // turns that continue when memory has been read
	discarded uint64
}

// A frameBatch holds frames for the link.
type frameBatch struct {
	sent   int    // frames[:sent] were accepted by the link
	filled int    // frames[sent:filled] wait for the link
	runs   int    // packets that frames[:filled] stand for, beyond one each
	taken  uint64 // frames that the link accepted, or did not for txStall
	frames []wire.TxFrame
	copies []copiedPayload // parallel to frames; nil: these have no payload of programs
}

func (b *frameBatch) empty() bool { return b.sent == b.filled }

func (b *frameBatch) waiting() int { return b.filled - b.sent }

// waitingPackets returns how many packets the waiting frames stand for.
func (b *frameBatch) waitingPackets() (n uint64) {
	for i := range b.frames[b.sent:b.filled] {
		n += uint64(b.frames[b.sent+i].Run.Packets())
	}
	return n
}

// last returns what taken will be when all waiting frames are sent.
func (b *frameBatch) last() uint64 { return b.taken + uint64(b.waiting()) }

// swap exchanges two frames.
func (b *frameBatch) swap(i, j int) {
	if i == j {
		return
	}
	b.frames[i], b.frames[j] = b.frames[j], b.frames[i]
	if b.copies != nil {
		b.copies[i], b.copies[j] = b.copies[j], b.copies[i]
	}
}

// remove notes that the link has taken the first n waiting frames.
func (b *frameBatch) remove(n int) {
	b.sent += n
	b.taken += uint64(n)
}

func (t *txState) init(d *Device) {
	n, c := txBatch, d.link.Capabilities()
	if c.MaxBatch > 0 {
		n = min(n, c.MaxBatch)
	}
	t.unread, t.joins, t.icrc = c.PayloadUnread, c.SuperPackets, c.ICRC
	if t.copyCost = 2; c.ICRC {
		t.copyCost = 1
	}
	t.data.frames, t.data.copies = make([]wire.TxFrame, n), make([]copiedPayload, n)
	t.replies.frames = make([]wire.TxFrame, replyBatch)
	t.turn = maxTurn
	if t.pfc = c.PFC; t.pfc {
		t.backlogs = make([]frameBatch, packet.Priorities)
	}
}

// A copiedPayload is the payload of a frame that waits for the link beyond its step. The buffer may
// be released to the program meanwhile. The storage is reused.
type copiedPayload struct {
	buf []byte
	is  bool
}

// copyWaiting copies the payload of the waiting frames, if the link reads it.
func (t *txState) copyWaiting() {
	if t.unread {
		return
	}
	t.data.copyWaiting()
	for left := t.backlogged; left != 0; left &= left - 1 {
		t.backlogs[bits.TrailingZeros8(left)].copyWaiting()
	}
}

func (b *frameBatch) copyWaiting() {
	for i := b.sent; i < b.filled; i++ {
		f, k := &b.frames[i], &b.copies[i]
		if k.is || len(f.Payload) == 0 {
			continue
		}
		k.buf = k.buf[:0]
		for _, p := range f.Payload {
			k.buf = append(k.buf, p...)
		}
		f.Payload = append(f.Payload[:0], k.buf)
		f.Volatile, k.is = true, true
	}
}

// forbidReferences makes fabrics copy the payload of the waiting frames. The memory that they refer
// to belongs to the program again at the end of the step.
func (t *txState) forbidReferences() {
	for i := t.data.sent; i < t.data.filled; i++ {
		t.data.frames[i].Volatile = true
	}
}

// free returns how many packets the batch being filled has room for. A run has as many as it stands
// for, so that it does not make a step longer.
func (t *txState) free() int {
	n := len(t.into.frames) - t.into.filled - t.into.runs
	if t.into == &t.data {
		n -= t.reserved
	}
	return n
}

func (t *txState) empty() bool { return t.data.empty() && t.replies.empty() }

// rewind makes the room of sent frames available. That of replies which have overtaken a frame
// stays in use until a frame was sent.
func (t *txState) rewind() {
	t.into = &t.data
	if t.congested = !t.empty(); t.data.empty() {
		t.data.sent, t.data.filled, t.data.runs = 0, 0, 0
		t.payload = payloadCursor{}
	}
	if t.replies.empty() && (t.data.empty() || t.data.taken != t.overtaken) {
		t.replies.sent, t.replies.filled, t.overtaken = 0, 0, t.data.taken
	}
}

// frame returns the next free frame of a batch.
func (t *txState) frame(b *frameBatch, path *wire.Path, volatile bool) *wire.TxFrame {
	f := &b.frames[b.filled]
	if b == &t.data {
		b.copies[b.filled].is = false
	}
	b.filled++
	f.Path, f.Flip, f.Volatile, f.CE, f.More, f.Dropped = path, 0, volatile, false, false, false
	f.Len, f.Mark, f.QPN = 0, 0, 0
	return f
}

// slot returns the next free frame for q, or nil if its turn is over or the batch is full.
func (t *txState) slot(q *QP) *packet.Tx {
	t.finish()
	if t.left <= 0 || t.free() == 0 {
		return nil
	}
	path := q.route()
	if path == nil || t.isClosed(path) {
		return nil
	}
	t.open = t.frame(t.into, path, !q.init.Type.Reliable())
	t.open.QPN = q.qpn
	return &t.open.Tx
}

// finish counts the frame being filled, or frees it if it was not filled.
func (t *txState) finish() {
	switch {
	case t.open == nil:
		return
	case t.open.Len == 0:
		t.into.filled--
	default:
		t.left -= max(t.open.Len, frameCost)
		if n := int(t.open.Run.Repeat); n > 0 {
			t.left -= n * max(t.open.Len-int(t.open.HeadLen)+packet.BTHLen, frameCost)
			t.into.runs += n
		}
	}
	t.open = nil
}

// room returns how many slots of a full packet are left for the current queue pair.
func (t *txState) room(mtu int) int {
	t.finish()
	if t.left <= 0 {
		return 0
	}
	cost := packetCost(mtu)
	return min((t.left+cost-1)/cost, t.free())
}

// last reports whether the next slot is the last one of the turn if it holds a full packet.
func (t *txState) last(mtu int) bool {
	t.finish()
	return t.left <= packetCost(mtu) || t.free() == 1
}

// packetCost returns the most that a packet takes of a turn.
func packetCost(mtu int) int { return max(mtu+packet.MaxHeaderLen, frameCost) }

// discardResponses discards the waiting READ responses to a queue pair with n PSNs from psn on.
// After a loss the requester ignores them.
func (t *txState) discardResponses(path *wire.Path, destQPN, psn, n uint32) {
	t.data.discardResponses(path, destQPN, psn, n)
	if t.backlogged != 0 {
		t.backlogs[path.SwitchPriority()].discardResponses(path, destQPN, psn, n)
	}
}

func (b *frameBatch) discardResponses(path *wire.Path, destQPN, psn, n uint32) {
	kept := b.sent
	for i := b.sent; i < b.filled; i++ {
		f := &b.frames[i]
		to, at := binary.BigEndian.Uint32(f.Head[4:])&packet.PSNMask, binary.BigEndian.Uint32(f.Head[8:])
		if f.Path == path && to == destQPN && (at-psn)&packet.PSNMask < n &&
			packet.Opcode(f.Head[0]).Info().Kind == packet.KindReadResponse {
			continue
		}
		b.swap(kept, i)
		kept++
	}
	b.filled = kept // taken does not count these: other queue pairs may have frames before them
}

// send passes the waiting frames to the link, and keeps those that it does not accept.
func (d *Device) send() (busy bool) {
	t := &d.tx
	if t.empty() && t.backlogged == 0 {
		return !t.clients.empty() || !t.due.empty()
	}
	n := d.sendBatch(&t.replies)
	if t.replies.empty() {
		n += d.sendBacklogs()
		n += d.sendBatch(&t.data)
	}
	if t.pfc {
		n += d.moveToBacklogs()
	}
	now := d.engine.timerNow()
	switch {
	case n > 0 || t.empty(): // what is paused may wait
		t.stalled = 0
	case t.stalled == 0:
		t.stalled = now
	case now-t.stalled > txStall:
		for _, b := range []*frameBatch{&t.replies, &t.data} {
			t.discarded += b.waitingPackets()
			b.remove(b.filled - b.sent)
		}
		t.stalled = 0
	}
	t.copyWaiting()
	return n > 0 || !t.empty() || !t.clients.empty() || !t.due.empty()
}

func (d *Device) sendBatch(b *frameBatch) int {
	if b.empty() {
		return 0
	}
	if d.disabled {
		n := b.filled - b.sent
		b.remove(n)
		return n
	}
	b.frames[b.filled-1].More = !d.tx.clients.empty()
	n, err := d.link.Send(d.engine.now, b.frames[b.sent:b.filled])
	if err != nil {
		d.linkError = err
	}
	b.remove(n)
	return n
}
