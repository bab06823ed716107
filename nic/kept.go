package nic

import (
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// Packets for a queue pair that is held wait with it: a peer whose packets were lost each time that
// a copy takes long would run out of retries on a busy machine.
const (
	// maxKept bounds the bytes kept for one client: about half of what a requester sends without
	// an acknowledgement.
	maxKept = 1 << 20

	// maxKeptAll bounds the bytes kept by an engine.
	maxKeptAll = 64 << 20

	// maxSpareKept bounds the bytes of frames that were delivered and may be used for others.
	maxSpareKept = maxKept
)

// A keptFrame is a copy of a received frame.
type keptFrame struct {
	part  *contextPart // of the queue pair
	frame wire.RxFrame
	grh   packet.GRH
	buf   []byte // storage of frame.Head
}

// keptFrames passes the memory of kept frames on to others.
type keptFrames struct {
	spare     []*keptFrame
	delivered []*keptFrame // writes may refer to them until the next flush has ended
	bytes     int          // of spare
}

// take returns a frame with storage for n bytes.
func (s *keptFrames) take(n int) *keptFrame {
	last := len(s.spare) - 1
	if last < 0 {
		return &keptFrame{buf: make([]byte, 0, n)}
	}
	k := s.spare[last]
	s.spare[last] = nil
	s.spare = s.spare[:last]
	s.bytes -= cap(k.buf)
	return k
}

// recycle makes the memory of the frames that were delivered available.
func (s *keptFrames) recycle() {
	for i, k := range s.delivered {
		if s.bytes+cap(k.buf) <= maxSpareKept {
			s.bytes += cap(k.buf)
			*k = keptFrame{buf: k.buf[:0]}
			s.spare = append(s.spare, k)
		}
		s.delivered[i] = nil
	}
	s.delivered = s.delivered[:0]
}

// abandon leaves the frames that were delivered to the thread that may write what they carry.
func (s *keptFrames) abandon() { s.delivered = nil }

// keep keeps a copy of f, which is for q, until q is not held any more.
func (d *Device) keep(q *QP, f *wire.RxFrame) {
	n := len(f.Head)
	for _, t := range f.Tail {
		n += len(t)
	}
	e := d.engine
	if q.part.kept+n > maxKept || e.kept+n > maxKeptAll {
		d.counters.Drop(transport.DropMemoryWait)
		return
	}
	q.part.kept += n
	e.kept += n
	k := e.keptFrames.take(n)
	k.buf = append(k.buf, f.Head...)
	for _, t := range f.Tail {
		k.buf = append(k.buf, t...)
	}
	k.part, k.frame = q.part, *f
	k.frame.Head, k.frame.Tail = k.buf, nil
	d.kept = append(d.kept, k)
}

// deliverKept receives the frames that were kept, after a release and before newer ones. Those for
// queue pairs that are still held are kept again.
func (e *Engine) deliverKept() {
	if !e.released {
		return
	}
	e.released = false
	for _, d := range e.devices {
		frames := d.kept
		d.kept, d.keptSpare = d.keptSpare[:0], nil
		for i, k := range frames {
			d.forget(k)
			d.receiveNoted(&k.frame, &k.grh)
			e.keptFrames.delivered = append(e.keptFrames.delivered, k)
			frames[i] = nil
		}
		d.keptSpare = frames
	}
	e.flush()
	e.keptFrames.recycle()
}

// forgetKept drops what is kept for a client that leaves.
func (d *Device) forgetKept(c *Context) {
	frames := d.kept
	d.kept = nil
	for _, k := range frames {
		if k.part.ctx != c {
			d.kept = append(d.kept, k)
			continue
		}
		d.forget(k)
		d.counters.Drop(transport.DropMemoryWait)
		d.noteDrop(&k.frame, transport.DropMemoryWait)
	}
}

// forget stops counting a frame.
func (d *Device) forget(k *keptFrame) {
	n := len(k.frame.Head)
	k.part.kept -= n
	d.engine.kept -= n
}
