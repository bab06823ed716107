package wire

// setReceived makes h a copy of f.
func (h *heldFrame) setReceived(f *RxFrame) {
	h.buf = append(h.buf[:0], f.Head...)
	for _, t := range f.Tail {
		h.buf = append(h.buf, t...)
	}
	h.RxFrame = *f
	h.Head, h.Tail = h.buf, nil
}

// Receive implements Link.
func (f *FaultLink) Receive(now int64, batch []RxFrame) (int, error) {
	if err := f.begin(now); err != nil {
		return 0, err
	}
	if f.rx.idle() && f.inI == f.inN && f.judge.sees&Received == 0 {
		return f.inner.Receive(now, batch)
	}
	f.rx.free = append(f.rx.free, f.lent...)
	f.lent = f.lent[:0]
	f.rx.expire(now)
	for {
		if n := f.deliver(now, batch); n > 0 || len(batch) == 0 {
			return n, nil
		}
		// Nothing of what the link gave last is in use, so it may give more.
		var err error
		f.inI = 0
		f.inN, err = f.inner.Receive(now, f.in[:])
		if f.inN == 0 || err != nil {
			return 0, err
		}
	}
}

// deliver fills batch with what waits and what the link gave.
func (f *FaultLink) deliver(now int64, batch []RxFrame) (n int) {
	for n < len(batch) {
		if ready := f.rx.waiting(); len(ready) > 0 {
			r := ready[0]
			batch[n] = r.frame.RxFrame
			n++
			f.lent = append(f.lent, r.frame)
			f.rx.passed(r.flow, r.seq, now)
			f.rx.gone(1)
			continue
		}
		if f.inI == f.inN {
			return n
		}
		rx := &f.in[f.inI]
		f.inI++
		if f.judgeReceived(now, rx) {
			batch[n] = *rx
			n++
			f.rx.passed(f.flowOf(rx), f.rxSeq, now)
		}
	}
	return n
}

func (f *FaultLink) flowOf(rx *RxFrame) flow { return flow{rx.Src, f.subj.h.DestQP} }

// judgeReceived reports whether a packet is handed on at once as it is; if not, it is
// dropped or placed.
func (f *FaultLink) judgeReceived(now int64, rx *RxFrame) bool {
	s := &f.subj
	s.dir, s.src, s.dst, s.n = Received, rx.Src, rx.Dst, len(rx.Head)
	for _, t := range rx.Tail {
		s.n += len(t)
	}
	s.look(rx.Head)
	f.rxSeq++
	f.judge.decide(now, s, &f.v, maxHeld-f.rx.len())
	switch {
	case f.v.drop:
		f.own.Drops[DropFault]++
		return false
	case f.v.plain(now):
		return true
	}
	f.holdReceived(now, rx)
	return false
}

// holdReceived places a packet, changed by the verdict, and its copies.
func (f *FaultLink) holdReceived(now int64, rx *RxFrame) {
	v := &f.v
	for range 1 + v.copies {
		h := f.freeRx()
		h.setReceived(rx)
		if v.flip != 0 {
			h.flip(int(v.flip - 1))
		}
		if v.mark {
			h.TClass |= 3
		}
		for _, r := range v.fields {
			r.Field.set(h.Head, r.Value)
		}
		f.rx.place(held[*heldFrame]{
			frame: h, flow: f.flowOf(rx), seq: f.rxSeq,
			due: v.due, by: v.by, limit: v.limit, rate: v.rate,
		}, now)
	}
}

// flip inverts a bit as TxFrame.Flip does.
func (h *heldFrame) flip(bit int) {
	switch b := bit / 8; {
	case b < len(h.buf):
		h.buf[b] ^= 0x80 >> (bit % 8)
		h.BadICRC = h.BadICRC || b != bthVariant
	case b < len(h.buf)+4:
		h.ICRC ^= 0x80 >> (bit % 8) << (8 * (b - len(h.buf)))
		h.BadICRC = true
	}
}

func (f *FaultLink) freeRx() *heldFrame {
	if k := len(f.rx.free); k > 0 {
		h := f.rx.free[k-1]
		f.rx.free = f.rx.free[:k-1]
		return h
	}
	return new(heldFrame)
}
