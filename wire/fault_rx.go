package wire

import (
	"softroce/packet"
	"softroce/wire/fault"
)

// setReceived makes c a copy of f.
func (c *rxCopy) setReceived(f *RxFrame) {
	c.buf = append(c.buf[:0], f.Head...)
	for _, t := range f.Tail {
		c.buf = append(c.buf, t...)
	}
	c.RxFrame = *f
	c.Head, c.Tail = c.buf, nil
}

// Receive implements Link.
func (f *FaultLink) Receive(now int64, batch []RxFrame) (int, error) {
	return f.receive(now, batch, Link.Receive)
}

// ReceiveRuns implements RunCarrier. The rules are for packets.
func (f *FaultLink) ReceiveRuns(now int64, batch []RxFrame) (int, error) {
	return f.receive(now, batch, ReceiveRuns)
}

// receive calls unchanged for the link if no rule acts on what it receives.
func (f *FaultLink) receive(now int64, batch []RxFrame, unchanged func(Link, int64, []RxFrame) (int, error)) (int, error) {
	if err := f.begin(now); err != nil {
		return 0, err
	}
	if f.rx.empty() && f.rxI == f.rxN && !f.rules.appliesTo(fault.Received) {
		return unchanged(f.inner, now, batch)
	}
	f.rx.free = append(f.rx.free, f.delivered...)
	f.delivered = f.delivered[:0]
	f.rx.expire(now)
	for dropped := 0; ; dropped++ {
		if n := f.deliver(now, batch); n > 0 || len(batch) == 0 {
			return n, nil
		}
		if dropped == maxUndelivered {
			return 0, ErrUnread
		}
		// No frame of the link's last batch is in use, so the link may be asked for another batch.
		var err error
		f.rxI = 0
		f.rxN, err = f.inner.Receive(now, f.rxFrames[:])
		if f.rxN == 0 || err != nil {
			return 0, err
		}
	}
}

// deliver fills batch with queued packets and with those of the link's last batch.
func (f *FaultLink) deliver(now int64, batch []RxFrame) (n int) {
	for n < len(batch) {
		if ready := f.rx.ready(); len(ready) > 0 {
			p := ready[0]
			batch[n] = p.frame.RxFrame
			n++
			f.delivered = append(f.delivered, p.frame)
			f.rx.passed(p.flow, p.seq, now)
			f.rx.remove(1)
			continue
		}
		if f.rxI == f.rxN {
			return n
		}
		rx := &f.rxFrames[f.rxI]
		f.rxI++
		if f.passesReceived(now, rx) {
			batch[n] = *rx
			n++
			f.rx.passed(f.flowOf(rx), f.rxSeq, now)
		}
	}
	return n
}

func (f *FaultLink) flowOf(rx *RxFrame) faultFlow {
	return faultFlow{rx.Src, f.info.Header.DestQP}
}

// passesReceived reports whether a packet is delivered at once and unchanged. If not, it drops or
// queues the packet.
func (f *FaultLink) passesReceived(now int64, rx *RxFrame) bool {
	f.rxSeq++
	f.evaluate(now, fault.Received, 0, rx.Network, rx.Src, rx.Dst, rx.Head, rx.Tail, rx.Len(), f.rx.len())
	if len(f.verdict.Rules) > 0 && f.noter.Noting() {
		f.note(rx.Mark, f.notes(0))
	}
	switch {
	case f.verdict.Drop:
		f.own.Drops[DropFault]++
		return false
	case f.verdict.Passes(now):
		return true
	}
	f.queueRx(now, rx)
	return false
}

// queueRx queues a packet, changed as the verdict says, and its copies.
func (f *FaultLink) queueRx(now int64, rx *RxFrame) {
	v := &f.verdict
	for range 1 + v.Copies {
		c := f.newRxCopy()
		c.setReceived(rx)
		if v.FlipBit != 0 {
			c.flip(int(v.FlipBit - 1))
		}
		if v.Mark {
			c.TClass |= 3
		}
		v.SetFields(c.Head)
		f.rx.add(queuedPacket[*rxCopy]{
			frame: c, flow: f.flowOf(rx), seq: f.rxSeq,
			due: v.Due, reorder: v.Reorder, reorderUntil: v.ReorderUntil, stalled: v.Stalled, rate: v.Queue,
		}, now)
	}
}

// flip inverts a bit, as TxFrame.Flip does.
func (c *rxCopy) flip(bit int) {
	switch b := bit / 8; {
	case b < len(c.buf):
		c.buf[b] ^= 0x80 >> (bit % 8)
		c.BadICRC = c.BadICRC || b != packet.BTHMaskedByte
	case b < len(c.buf)+packet.ICRCLen:
		c.ICRC ^= 0x80 >> (bit % 8) << (8 * (b - len(c.buf)))
		c.BadICRC = true
	}
}

func (f *FaultLink) newRxCopy() *rxCopy {
	if k := len(f.rx.free); k > 0 {
		c := f.rx.free[k-1]
		f.rx.free = f.rx.free[:k-1]
		return c
	}
	return new(rxCopy)
}
