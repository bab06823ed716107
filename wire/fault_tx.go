package wire

import "softroce/wire/fault"

// A txCopy is a frame to send that owns its bytes.
type txCopy struct {
	TxFrame
	buf []byte
}

func (c *txCopy) set(f *TxFrame) {
	payload := c.Payload[:0]
	c.TxFrame = *f
	c.buf = c.buf[:0]
	for _, p := range f.Payload {
		c.buf = append(c.buf, p...)
	}
	if c.Payload = payload; len(c.buf) > 0 {
		c.Payload = append(payload, c.buf)
	}
	c.Volatile = true // the copy is reused
}

// Send implements Link. It also takes one frame that the link does not take: the rules have counted
// it, so it is queued. Until the link takes it, Send takes no more, or none of its priority if that
// is paused.
func (f *FaultLink) Send(now int64, batch []TxFrame) (int, error) {
	if err := f.begin(now); err != nil {
		return 0, err
	}
	if f.tx.empty() && f.held.n == 0 && !f.rules.appliesTo(fault.Sent) {
		return f.inner.Send(now, batch)
	}
	if hasRuns(batch) {
		return f.divider.sendAll(now, batch, f.Send)
	}
	from := 0 // frames from here to i pass unchanged
	for i := range batch {
		if len(f.tx.ready()) > 0 {
			return i, nil // the link is congested
		}
		tx := &batch[i]
		if f.held.waits(f.inner, tx.Path) {
			return i, f.forward(batch[from:i])
		}
		f.txSeq++
		f.evaluate(now, fault.Sent, tx.QPN, tx.Path.Network, tx.Path.Src, tx.Path.Dst, tx.Head[:tx.HeadLen], tx.Payload, tx.Len, f.tx.len()+f.held.n)
		noting := len(f.verdict.Rules) > 0 && f.noter.Noting()
		if !noting && f.verdict.Passes(now) && len(f.tx.reordered) == 0 {
			continue
		}
		if err := f.forward(batch[from:i]); err != nil {
			return i, err
		}
		from = i + 1
		if f.verdict.Drop {
			f.own.Drops[DropFault]++
			if noting {
				f.note(0, f.notes(0))
			}
			continue
		}
		f.queueTx(now, tx, noting)
		if err := f.sendReady(); err != nil {
			return i + 1, err
		}
	}
	return len(batch), f.forward(batch[from:])
}

// forward sends frames that no rule acted on, and queues those that the link does not take.
func (f *FaultLink) forward(batch []TxFrame) error {
	if len(batch) == 0 {
		return nil
	}
	n, err := f.inner.Send(f.now, batch)
	if err != nil {
		return err
	}
	for i := n; i < len(batch); i++ {
		c := f.newTxCopy()
		c.set(&batch[i])
		f.tx.add(queuedPacket[*txCopy]{frame: c}, f.now)
	}
	return nil
}

// queueTx queues a frame, changed as the verdict says, and its copies.
func (f *FaultLink) queueTx(now int64, tx *TxFrame, noting bool) {
	v := &f.verdict
	for i := range 1 + v.Copies {
		c := f.newTxCopy()
		c.set(tx)
		if v.FlipBit != 0 {
			c.Flip = v.FlipBit
		}
		c.CE = c.CE || v.Mark
		v.SetFields(c.Head[:c.HeadLen])
		var notes []*fault.Note
		if c.Mark = 0; noting {
			c.Mark = f.noter.NewMark()
			notes = f.notes(i)
		}
		f.tx.add(queuedPacket[*txCopy]{
			notes: notes, frame: c, flow: faultFlow{tx.Path.Dst, f.info.Header.DestQP}, seq: f.txSeq,
			due: v.Due, reorder: v.Reorder, reorderUntil: v.ReorderUntil, stalled: v.Stalled, rate: v.Queue,
		}, now)
	}
}

// sendReady sends the queued packets whose time has come, until the link takes no more. Those of a
// paused priority are held, so that others pass them.
func (f *FaultLink) sendReady() (err error) {
	if f.held.n > 0 {
		if f.heldBack, err = f.held.send(^Paused(f.inner), len(f.txFrames), f.sendPackets); err != nil {
			return err
		}
	}
	for {
		ready := f.tx.ready()
		n := 0
		for n < min(len(ready), len(f.txFrames)) && !f.held.waits(f.inner, ready[n].frame.Path) {
			n++
		}
		sent, err := f.sendPackets(ready[:n])
		f.tx.remove(sent)
		if ready = f.tx.ready(); err != nil || len(ready) == 0 {
			return err
		}
		if p := ready[0]; f.held.waits(f.inner, p.frame.Path) {
			f.held.hold(p.frame.Path.SwitchPriority(), p)
			f.tx.remove(1)
		} else if sent < n {
			return nil // the link is congested
		}
	}
}

// sendPackets sends up to faultBatch packets and returns how many the link took.
func (f *FaultLink) sendPackets(l []queuedPacket[*txCopy]) (int, error) {
	if len(l) == 0 {
		return 0, nil
	}
	for i, p := range l {
		f.txFrames[i] = p.frame.TxFrame
	}
	n, err := f.inner.Send(f.now, f.txFrames[:len(l)])
	if err != nil {
		return 0, err
	}
	for _, p := range l[:n] {
		f.tx.free = append(f.tx.free, p.frame)
		f.tx.passed(p.flow, p.seq, f.now)
		f.note(p.frame.Mark, p.notes)
	}
	return n, nil
}

func (f *FaultLink) newTxCopy() *txCopy {
	if k := len(f.tx.free); k > 0 {
		c := f.tx.free[k-1]
		f.tx.free = f.tx.free[:k-1]
		return c
	}
	return new(txCopy)
}
