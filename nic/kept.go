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
)

// A keptFrame is a copy of a received frame.
type keptFrame struct {
	ctx   *Context // of the queue pair
	frame wire.RxFrame
	grh   packet.GRH
}

// keep keeps a copy of f, which is for q, until q is not held any more.
func (d *Device) keep(q *QP, f *wire.RxFrame) {
	n := len(f.Head)
	for _, t := range f.Tail {
		n += len(t)
	}
	e := d.engine
	if q.ctx.kept+n > maxKept || e.kept+n > maxKeptAll {
		d.counters.Drop(transport.DropMemoryWait)
		return
	}
	q.ctx.kept += n
	e.kept += n
	k := &keptFrame{ctx: q.ctx, frame: *f}
	k.frame.Head = append(make([]byte, 0, n), f.Head...)
	for _, t := range f.Tail {
		k.frame.Head = append(k.frame.Head, t...)
	}
	k.frame.Tail = nil
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
		d.kept = nil
		for _, k := range frames {
			d.forget(k)
			d.receiveFrame(&k.frame, &k.grh)
		}
	}
	e.flush()
}

// forgetKept drops what is kept for a client that leaves.
func (d *Device) forgetKept(c *Context) {
	frames := d.kept
	d.kept = nil
	for _, k := range frames {
		if k.ctx != c {
			d.kept = append(d.kept, k)
			continue
		}
		d.forget(k)
		d.counters.Drop(transport.DropMemoryWait)
	}
}

// forget stops counting a frame.
func (d *Device) forget(k *keptFrame) {
	n := len(k.frame.Head)
	k.ctx.kept -= n
	d.engine.kept -= n
}
