package wire

import "slices"

// KeepReceived makes a link keep the bytes of the frames that it has returned: no later frame
// overwrites them. A caller needs it while another thread still reads those bytes. It allocates new
// buffers. The memory of other programs, to which a fabric's frames may refer, is not the link's.
func KeepReceived(l Link) {
	if k, ok := l.(Keeper); ok {
		k.KeepReceived()
	}
}

// A Keeper is a link with buffers of its own, or around a link.
type Keeper interface {
	// KeepReceived does what the function KeepReceived says.
	KeepReceived()
}

// KeepReceived implements Keeper.
func (l *PacketLink) KeepReceived() { l.rx.keep() }

// KeepReceived implements Keeper.
func (l *DgramLink) KeepReceived() { l.rx.keep() }

// KeepReceived implements Keeper.
func (l *UDPLink) KeepReceived() {
	for _, s := range l.sockets {
		if s != nil {
			s.rx.keep()
		}
	}
}

// KeepReceived implements Keeper.
func (l *XDPLink) KeepReceived() {
	l.room, l.used = make([]byte, xdpRoom), 0
	for _, s := range l.queues {
		if s.keep() != nil {
			s.held = s.held[:0] // the kernel does not get these chunks back
		}
	}
}

// KeepReceived implements Keeper.
func (c *CaptureLink) KeepReceived() { KeepReceived(c.inner) }

// KeepReceived implements Keeper.
func (l *LoopbackLink) KeepReceived() {
	l.ring.keep()
	if l.crossing != nil {
		l.arrivals.keep()
	}
	KeepReceived(l.inner)
}

// KeepReceived implements Keeper.
func (f *FaultLink) KeepReceived() {
	f.delivered = nil
	KeepReceived(f.inner)
}

// KeepReceived implements Keeper.
func (s *ShapedLink) KeepReceived() {
	for i := range s.delivered {
		s.arriving.packets[s.arriving.first+i] = new(rxCopy)
	}
	KeepReceived(s.inner)
}

// KeepReceived implements Keeper.
func (p *FabricLink) KeepReceived() {
	p.ring.keep()
	p.arrivals.keep()
}

// keep replaces the buffers of messages by copies.
func (b *rxBatch) keep() {
	b.buf = slices.Clone(b.buf)
	for i := range b.iovs {
		b.iovs[i].Base = &b.buf[i*rxStride]
	}
}

// keep replaces the buffers of copied frames that receive has returned.
func (r *frameRing) keep() {
	for i := range r.slots {
		r.slots[i].whole = slices.Clone(r.slots[i].whole)
	}
}
