package wire

import (
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// An outbox collects messages for one sendmmsg. Each begins with header bytes that
// the link writes, and goes on with one or more segments.
//
// Between two payloads lie the pad and ICRC of one packet and the BTH of the next.
// They are copied together, so that a packet costs the kernel two pieces to gather.
type outbox struct {
	msgs   [sendMessages]mmsghdr
	runs   [sendMessages]int // frames in each message
	n      int               // messages
	pieces []unix.Iovec
	used   int    // pieces
	size   int    // bytes of all messages
	side   []byte // headers, tails, BTHs, and packets that are copied
	at     int    // bytes of side in use
	open   int    // where in side the piece begins that is being written
	first  int    // first piece of the message that is being written
}

const sideLen = 256 << 10

func newOutbox() *outbox {
	return &outbox{pieces: make([]unix.Iovec, 4*maxPieces), side: make([]byte, sideLen)}
}

// reset empties the box, and forgets the memory that it referred to.
func (o *outbox) reset() {
	clear(o.pieces[:o.used])
	o.n, o.used, o.size, o.at, o.open = 0, 0, 0, 0, 0
}

// room reports whether a message of these frames, with headers of headerLen, still fits.
func (o *outbox) room(run []TxFrame, headerLen int) bool {
	need, pieces := headerLen, 1
	for i := range run {
		need += int(run[i].HeadLen) + tailLen
		if run[i].Flip != 0 || run[i].Len <= copyLen {
			need += run[i].Len
		}
		pieces += len(run[i].Payload) + 1
	}
	return o.n < sendMessages && (o.n == 0 || o.size < sendBytes) && o.at+need <= len(o.side) && o.used+pieces <= len(o.pieces)
}

// begin starts a message and returns the room for its header.
func (o *outbox) begin(headerLen int) []byte {
	o.first, o.open = o.used, o.at
	return o.bytes(headerLen)
}

// bytes returns the next n bytes of side, as part of the message.
func (o *outbox) bytes(n int) []byte {
	b := o.side[o.at : o.at+n : o.at+n]
	o.at += n
	return b
}

// flush makes what was written to side since the last piece a piece.
func (o *outbox) flush() {
	if o.at > o.open {
		o.piece(o.side[o.open:o.at])
		o.open = o.at
	}
}

func (o *outbox) piece(b []byte) {
	v := &o.pieces[o.used]
	v.Base = &b[0]
	v.SetLen(len(b))
	o.used++
	o.size += len(b)
}

// segment adds a packet with its ICRC, which it also notes in f.
func (o *outbox) segment(f *TxFrame, a *packet.Addressing) {
	f.ID = a.ID
	if !a.Src.Is4() {
		f.ID = 0
	}
	if f.Flip != 0 || f.Len <= copyLen {
		o.copied(f, a)
		return
	}
	f.ICRC = packet.ICRCTx(a, &f.Tx)
	copy(o.bytes(int(f.HeadLen)), f.Head[:f.HeadLen])
	o.flush()
	for _, p := range f.Payload {
		o.piece(p)
	}
	tail := o.bytes(int(f.Pad) + packet.ICRCLen)
	clear(tail[:f.Pad])
	putICRC(tail[f.Pad:], f.ICRC)
}

// copied is segment for a packet whose payload is copied first: because it is short,
// or because a bit of it is to be inverted.
func (o *outbox) copied(f *TxFrame, a *packet.Addressing) {
	b := o.bytes(f.Len + packet.ICRCLen)
	n := copy(b, f.Head[:f.HeadLen])
	for _, p := range f.Payload {
		n += copy(b[n:], p)
	}
	clear(b[n:f.Len])
	f.ICRC = packet.ICRCBytes(a, b[:f.Len])
	putICRC(b[f.Len:], f.ICRC)
	if bit := int(f.Flip) - 1; bit >= 0 && bit < 8*len(b) {
		b[bit/8] ^= 0x80 >> (bit % 8)
	}
}

func putICRC(b []byte, icrc uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(icrc), byte(icrc>>8), byte(icrc>>16), byte(icrc>>24)
}

// end completes the message of n frames and returns it, for a name and control data.
func (o *outbox) end(n int) *mmsghdr {
	o.flush()
	m := &o.msgs[o.n]
	m.Iov = &o.pieces[o.first]
	m.SetIovlen(o.used - o.first)
	o.runs[o.n] = n
	o.n++
	return m
}

// send gives the messages from number i on to the kernel and returns how many it took.
func (o *outbox) send(fd, i int) (int, unix.Errno) { return sendmmsg(fd, o.msgs[i:o.n]) }

// runLength returns how many frames from the front of batch may be one super-packet of
// at most limit bytes from first BTH to last ICRC.
func runLength(batch []TxFrame, limit int) int {
	f := &batch[0]
	size, pieces := f.Len+packet.ICRCLen, len(f.Payload)+2
	if f.Flip != 0 { // goes alone: it is copied, for which there is room once
		return 1
	}
	for n := 1; n < len(batch) && n < maxSegments; n++ {
		g := &batch[n]
		size += g.Len + packet.ICRCLen
		pieces += len(g.Payload) + 1
		if g.Path != f.Path || g.CE != f.CE || g.Flip != 0 || g.Len > f.Len || size > limit || pieces > maxPieces {
			return n
		}
		if g.Len < f.Len {
			return n + 1
		}
	}
	return min(len(batch), maxSegments)
}

// runLimit is the limit of runLength for a family.
func runLimit(is4 bool) int {
	const around = ethernetLen + vlanTagLen + udpLen
	if is4 {
		return maxSuperPacket - around - ipv4Len
	}
	return maxSuperPacket - around - ipv6Len
}

// addressing returns what the headers of a frame say, but for source MAC, ID and checksum.
func (p *Path) addressing(ce bool) packet.Addressing {
	a := packet.Addressing{
		Src: p.Src, Dst: p.Dst, TClass: p.TClass, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
		DstMAC: p.DstMAC, SrcPort: p.SrcPort,
	}
	if p.VLAN != 0 {
		a.Tagged, a.TCI = true, p.tci()
	}
	if ce {
		a.TClass |= 3
	}
	return a
}

// sendable reports whether a frame could be sent over a path at all.
func (p *Path) sendable() bool {
	return p != nil && p.Src.IsValid() && p.Dst.IsValid() && p.Src.Is4() == p.Dst.Is4() &&
		!p.Src.Is4In6() && !p.Dst.Is4In6()
}

// refused counts a frame that was taken and cannot be sent.
func (c *LinkCounters) refused(f *TxFrame, d Drop) {
	c.Drops[d]++
	f.Dropped = true
}
