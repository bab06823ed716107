package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// What the packet and udp links share: many super-packets in one system call, each
// gathered from where its parts lie, or scattered to buffers that are used again.
//
// A super-packet stands for consecutive packets of equal length of which the last may
// be shorter: First and Middle, or Middle to Last, of a message. The kernel carries it
// as one through the stack, and cuts it where it must.

const (
	// maxSegments bounds the packets of a super-packet. The kernel allows a UDP socket 64.
	maxSegments = 64

	// A system call moves so many super-packets, or fewer where they are long: more
	// bytes than the processor's cache holds are better moved in two calls, and the
	// receiver works on the first half while the second is sent.
	sendMessages    = 32
	sendBytes       = 512 << 10
	receiveMessages = 32
	receiveLong     = 8        // messages, once they were found to be longer than
	longMessage     = 16 << 10 // bytes on average

	// receiveTries bounds how often a Receive asks again when it had to drop all that came.
	receiveTries = 4

	// sendBatch is how many frames one Send should be given: some super-packets full.
	sendBatch = 256

	// maxPieces bounds what one message is gathered from; the kernel's bound is 1024.
	maxPieces = 512

	// maxIPPacket bounds the total length of an IPv4 packet, and the payload of an IPv6
	// one, super-packets too.
	maxIPPacket = 65535

	// copyLen bounds the packets that are copied, BTH to pad. It costs less than having
	// the kernel gather them; and what a program changes while it is sent, as one does
	// that hands out a counter by RDMA READ, cannot come to disagree with its ICRC.
	// Longer ones can: they are lost then, and sent again.
	copyLen = 512

	// tailLen is what can follow a payload: pad and ICRC.
	tailLen = 3 + packet.ICRCLen
)

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	n uint32 // bytes, set by the kernel
	_ uint32
}

// sendmmsg sends messages without blocking and returns how many went. An error is that
// of the first message, and none went then.
func sendmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
			uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(n), 0
	}
}

// recvmmsg receives what is there, without blocking. None and no error means nothing.
func recvmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
			uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			return int(n), 0
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, 0
		default:
			return 0, e
		}
	}
}

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
	side   []byte // headers, tails, BTHs; and whole packets that are damaged on purpose
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
	if is4 {
		return maxIPPacket - ipv4Len - udpLen
	}
	return maxIPPacket - udpLen
}

// addressing returns what the headers of f say, but for ID and checksum.
func (p *Path) addressing(ce bool) packet.Addressing {
	a := packet.Addressing{
		Src: p.Src, Dst: p.Dst, TClass: p.TClass, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
		DstMAC: p.DstMAC, SrcPort: p.SrcPort,
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

// receiveStride is the distance of receive buffers: room for the longest super-packet
// and its headers, and 64 bytes more than a multiple of a page, so that the headers of
// different buffers do not compete for one set of the processor's cache.
const receiveStride = 68<<10 + 64

// An intake is filled by one recvmmsg, and emptied over one or more calls of Receive.
type intake struct {
	msgs    [receiveMessages]mmsghdr
	iovs    [receiveMessages]unix.Iovec
	names   [receiveMessages]unix.RawSockaddrInet6 // room for either family
	control []byte
	each    int // bytes of control per message
	buf     []byte
	n, next int // messages received, and the next to look at
	limit   int // messages to ask for
}

// newIntake makes buffers for messages with control bytes of control data each, and with
// a source address where named.
func newIntake(control int, named bool) *intake {
	in := &intake{limit: receiveMessages, each: control, control: make([]byte, receiveMessages*control), buf: make([]byte, receiveMessages*receiveStride)}
	for i := range in.msgs {
		m := &in.msgs[i]
		in.iovs[i].Base = &in.buf[i*receiveStride]
		in.iovs[i].SetLen(receiveStride)
		m.Iov = &in.iovs[i]
		m.SetIovlen(1)
		if named {
			m.Name = (*byte)(unsafe.Pointer(&in.names[i]))
		}
		if control > 0 {
			m.Control = &in.control[i*control]
		}
	}
	return in
}

// fill receives into all buffers.
func (in *intake) fill(fd int) unix.Errno {
	for i := range in.limit {
		m := &in.msgs[i]
		m.Flags = 0
		m.SetControllen(in.each)
		if m.Name != nil {
			m.Namelen = uint32(unsafe.Sizeof(in.names[i]))
		}
	}
	n, e := recvmmsg(fd, in.msgs[:in.limit])
	in.n, in.next = n, 0
	bytes := 0
	for i := range n {
		bytes += int(in.msgs[i].n)
	}
	in.limit = receiveMessages
	if bytes > n*longMessage {
		in.limit = receiveLong
	}
	return e
}

// take returns the next message and its number, or nil where there is none.
func (in *intake) take() (b []byte, m *mmsghdr, i int) {
	if in.next == in.n {
		return nil, nil, 0
	}
	i = in.next
	in.next++
	m = &in.msgs[i]
	return in.buf[i*receiveStride:][:m.n:m.n], m, i
}

// A cutter hands out the packets of a super-packet, one after the other.
type cutter struct {
	rest  []byte // from BTH to ICRC, of all that are left
	size  int    // of each but the last
	i     int    // number of the next, from 0
	short int    // how many were too short for BTH and ICRC
}

// cut returns the next packet, from BTH to ICRC, and its number; nil at the end.
func (c *cutter) cut() (b []byte, i int) {
	for len(c.rest) > 0 {
		b := c.rest[:min(c.size, len(c.rest))]
		c.rest = c.rest[len(b):]
		i := c.i
		c.i++
		if len(b) >= packet.BTHLen+packet.ICRCLen {
			return b, i
		}
		c.short++
	}
	return nil, 0
}

// runts returns how many packets were too short since it was last asked.
func (c *cutter) runts() uint64 {
	n := c.short
	c.short = 0
	return uint64(n)
}

// setBuffers asks for large socket buffers, beyond the system's limit where that is
// allowed, so that a burst of the peer's window fits.
func setBuffers(fd, receive, send int) {
	set := func(force, plain, n int) {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, n)
		}
	}
	set(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive)
	set(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, send)
}
