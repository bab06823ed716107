package wire

import "slices"

// KeepReceived makes a link keep the bytes of the frames that it has returned: no later frame
// overwrites them. A caller needs it while another thread still reads those bytes. It allocates new
// buffers. The memory of other programs, to which a fabric's frames may refer, is not the link's.
func KeepReceived(l Link) {
	if k, ok := l.(keeper); ok {
		k.keepReceived()
	}
}

// A keeper is a link with buffers of its own, or around a link.
type keeper interface{ keepReceived() }

func (l *PacketLink) keepReceived() { l.rx.keep() }
func (l *DgramLink) keepReceived()  { l.rx.keep() }

func (l *UDPLink) keepReceived() {
	for _, s := range l.sockets {
		if s != nil {
			s.rx.keep()
		}
	}
}

func (l *XDPLink) keepReceived() {
	l.room, l.used = make([]byte, xdpRoom), 0
	for _, s := range l.queues {
		if s.keep() != nil {
			s.held = s.held[:0] // the kernel does not get these chunks back
		}
	}
}

func (c *CaptureLink) keepReceived() { KeepReceived(c.inner) }

func (l *LoopbackLink) keepReceived() {
	l.ring.keep()
	if l.crossing != nil {
		l.arrivals.keep()
	}
	KeepReceived(l.inner)
}

func (f *FaultLink) keepReceived() {
	f.delivered = nil
	KeepReceived(f.inner)
}

func (s *ShapedLink) keepReceived() {
	for i := range s.delivered {
		s.arriving.packets[s.arriving.first+i] = new(rxCopy)
	}
	KeepReceived(s.inner)
}

func (p *FabricLink) keepReceived() {
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
