package wire

// A heldTx is a frame to send with bytes of its own.
type heldTx struct {
	TxFrame
	buf []byte
}

func (h *heldTx) set(f *TxFrame) {
	payload := h.Payload[:0]
	h.TxFrame = *f
	h.buf = h.buf[:0]
	for _, p := range f.Payload {
		h.buf = append(h.buf, p...)
	}
	if h.Payload = payload; len(h.buf) > 0 {
		h.Payload = append(payload, h.buf)
	}
	h.Volatile = true // h is used again
}

// Send implements Link. It takes a frame that the link does not: such a one waits here,
// because the rules have been asked about it. Then it takes no more.
func (f *FaultLink) Send(now int64, batch []TxFrame) (int, error) {
	if err := f.begin(now); err != nil {
		return 0, err
	}
	if f.tx.idle() && f.judge.sees&Sent == 0 {
		return f.inner.Send(now, batch)
	}
	from := 0 // frames from here to i go as they are
	for i := range batch {
		if len(f.tx.waiting()) > 0 {
			return i, nil // the link is congested
		}
		tx := &batch[i]
		f.judgeSent(now, tx)
		if !f.v.drop && f.v.plain(now) && len(f.tx.parked) == 0 {
			continue
		}
		if err := f.forward(batch[from:i]); err != nil {
			return i, err
		}
		from = i + 1
		if f.v.drop {
			f.own.Drops[DropFault]++
			continue
		}
		f.holdSent(now, tx)
		if err := f.sendReady(); err != nil {
			return i + 1, err
		}
	}
	return len(batch), f.forward(batch[from:])
}

func (f *FaultLink) judgeSent(now int64, tx *TxFrame) {
	s := &f.subj
	s.dir, s.src, s.dst, s.n = Sent, tx.Path.Src, tx.Path.Dst, tx.Len
	s.look(tx.Head[:tx.HeadLen])
	f.txSeq++
	f.judge.decide(now, s, &f.v, maxHeld-f.tx.len())
}

// forward sends frames that no rule acted on, and keeps those that the link refuses.
func (f *FaultLink) forward(batch []TxFrame) error {
	if len(batch) == 0 {
		return nil
	}
	n, err := f.inner.Send(f.now, batch)
	if err != nil {
		return err
	}
	for i := n; i < len(batch); i++ {
		h := f.freeTx()
		h.set(&batch[i])
		f.tx.place(held[*heldTx]{frame: h}, f.now)
	}
	return nil
}

// holdSent places a packet, changed by the verdict, and its copies.
func (f *FaultLink) holdSent(now int64, tx *TxFrame) {
	v := &f.v
	for range 1 + v.copies {
		h := f.freeTx()
		h.set(tx)
		if v.flip != 0 {
			h.Flip = v.flip
		}
		h.CE = h.CE || v.mark
		for _, r := range v.fields {
			r.Field.set(h.Head[:h.HeadLen], r.Value)
		}
		f.tx.place(held[*heldTx]{
			frame: h, flow: flow{tx.Path.Dst, f.subj.h.DestQP}, seq: f.txSeq,
			due: v.due, by: v.by, limit: v.limit, rate: v.rate,
		}, now)
	}
}

// sendReady sends what has waited, until the link takes no more.
func (f *FaultLink) sendReady() error {
	for {
		ready := f.tx.waiting()
		ready = ready[:min(len(ready), len(f.out))]
		if len(ready) == 0 {
			return nil
		}
		for i, r := range ready {
			f.out[i] = r.frame.TxFrame
		}
		n, err := f.inner.Send(f.now, f.out[:len(ready)])
		if err != nil {
			return err
		}
		for _, r := range ready[:n] {
			f.tx.free = append(f.tx.free, r.frame)
			f.tx.passed(r.flow, r.seq, f.now)
		}
		f.tx.gone(n)
		if n < len(ready) {
			return nil
		}
	}
}

func (f *FaultLink) freeTx() *heldTx {
	if k := len(f.tx.free); k > 0 {
		h := f.tx.free[k-1]
		f.tx.free = f.tx.free[:k-1]
		return h
	}
	return new(heldTx)
}
