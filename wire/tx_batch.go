package wire

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A txEncoder is what sending through a socket leaves to the kind of link.
type txEncoder interface {
	// encode adds a message with a run of frames to the link's batch.
	encode(run []TxFrame)

	// onError decides what happens to a message of some frames that the kernel rejected, other than
	// for congestion. retries is the number of times that the kernel rejected a message of the
	// batch and onError chose to retry.
	onError(e unix.Errno, frames, retries int) (txAction, Drop)
}

// A txAction is what happens to a message that the kernel rejected.
type txAction uint8

const (
	txDrop    txAction = iota // drop its frames for a reason
	txRetry                   // send it again
	txRebuild                 // encode its frames and those behind it again
)

// A txBatch sends frames through a socket, several messages in one sendmmsg.
//
// A message begins with header bytes that the link writes and goes on with one or more segments,
// each a packet. Between two payloads lie the pad and ICRC of one packet and the BTH of the next.
// They are copied together, so that each packet costs the kernel two pieces to gather.
type txBatch struct {
	link       txEncoder
	headerRoom int    // the most bytes of header in a message
	id         uint16 // Identification of the next frame
	gso        bool   // messages may be super-packets
	gsoSuspect bool   // gso was turned off after an error and no message was sent since

	msgs   [txMessages]mmsghdr
	frames [txMessages]int // frames in each message
	n      int             // messages
	pieces []unix.Iovec
	used   int    // pieces
	size   int    // bytes of all messages
	copied []byte // headers, tails, BTHs and copied packets
	end    int    // bytes of copied in use
	start  int    // where in copied the current piece begins
	first  int    // first piece of the current message

	icrc    packet.ICRCBase // of the current message's packets of icrcLen bytes
	icrcLen int
}

// txCopyRoom is the room for copied bytes in a txBatch.
const txCopyRoom = 256 << 10

func newTxBatch(link txEncoder, headerRoom int, gso bool) *txBatch {
	return &txBatch{link: link, headerRoom: headerRoom, gso: gso,
		pieces: make([]unix.Iovec, 4*maxPieces), copied: make([]byte, txCopyRoom)}
}

// send sends frames and returns how many it took: fewer than all if the socket is congested.
func (b *txBatch) send(fd, mtu int, frames []TxFrame, c *LinkCounters) (taken int) {
	for full := false; taken < len(frames) && !full; {
		if d, ok := checkTx(&frames[taken], mtu); !ok {
			c.dropTx(&frames[taken], d)
			taken++
			continue
		}
		id := b.id
		b.fill(mtu, frames[taken:])
		var n int
		n, full = b.flush(fd, frames[taken:], c)
		taken += n
		b.id = id + uint16(n)
		b.reset()
	}
	return taken
}

// checkTx reports whether a frame can be sent, or why not.
func checkTx(f *TxFrame, mtu int) (Drop, bool) {
	switch {
	case !f.Path.sendable():
		return DropUnreachable, false
	case tooLong(f, mtu) || len(f.Payload) >= maxPieces:
		return DropTooLong, false
	}
	return 0, true
}

// fill encodes frames from the front of frames: at least one, which must have passed checkTx.
func (b *txBatch) fill(mtu int, frames []TxFrame) {
	for len(frames) > 0 {
		if _, ok := checkTx(&frames[0], mtu); !ok {
			return
		}
		n := 1
		if b.gso {
			n = runLength(frames, runLimit(frames[0].Path.Dst.Is4()))
		}
		if !b.fits(frames[:n]) {
			return
		}
		b.link.encode(frames[:n])
		frames = frames[n:]
	}
}

// flush gives the messages to the kernel. It returns how many frames were sent or dropped, and
// whether the socket is congested.
func (b *txBatch) flush(fd int, frames []TxFrame, c *LinkCounters) (taken int, full bool) {
	retries := 0
	for i := 0; i < b.n; {
		n, e := sendmmsg(fd, b.msgs[i:b.n])
		for range n {
			for range b.frames[i] {
				c.addTx(&frames[taken])
				taken++
			}
			i++
			b.gsoSuspect = false
		}
		switch e {
		case 0:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return taken, true
		}
		action, drop := b.link.onError(e, b.frames[i], retries)
		switch action {
		case txRetry:
			retries++
			continue
		case txRebuild:
			return taken, false
		}
		for range b.frames[i] {
			c.dropTx(&frames[taken], drop)
			taken++
		}
		i++
	}
	return taken, false
}

// reset empties the batch, and drops its references to the frames' memory.
func (b *txBatch) reset() {
	clear(b.pieces[:b.used])
	b.n, b.used, b.size, b.end, b.start = 0, 0, 0, 0, 0
}

// fits reports whether there is room for a message with a run of frames.
func (b *txBatch) fits(run []TxFrame) bool {
	need, pieces := b.headerRoom, 1
	for i := range run {
		need += int(run[i].HeadLen) + tailLen
		if run[i].Flip != 0 || run[i].Len <= copyLen {
			need += run[i].Len
		}
		pieces += len(run[i].Payload) + 1
	}
	return b.n < txMessages && (b.n == 0 || b.size < txBytes) && b.end+need <= len(b.copied) && b.used+pieces <= len(b.pieces)
}

// beginMessage starts a message and returns the room for its header.
func (b *txBatch) beginMessage(headerLen int) []byte {
	b.first, b.start, b.icrcLen = b.used, b.end, 0
	return b.bytes(headerLen)
}

// bytes adds n bytes to the message and returns them, to be written.
func (b *txBatch) bytes(n int) []byte {
	s := b.copied[b.end : b.end+n : b.end+n]
	b.end += n
	return s
}

// endPiece makes a piece of the bytes that were added since the last one.
func (b *txBatch) endPiece() {
	if b.end > b.start {
		b.addPiece(b.copied[b.start:b.end])
		b.start = b.end
	}
}

func (b *txBatch) addPiece(s []byte) {
	v := &b.pieces[b.used]
	v.Base = &s[0]
	v.SetLen(len(s))
	b.used++
	b.size += len(s)
}

// addSegment adds a packet and its ICRC to the message. It sets ID and ICRC of f.
func (b *txBatch) addSegment(f *TxFrame, a *packet.Addressing) {
	f.setID(a)
	if f.Len != b.icrcLen {
		b.icrc, b.icrcLen = a.ICRCBase(f.Len), f.Len
	}
	if f.Flip != 0 || f.Len <= copyLen {
		b.addCopy(f)
		return
	}
	f.ICRC = b.icrc.Tx(f.ID, &f.Tx)
	copy(b.bytes(int(f.HeadLen)), f.Head[:f.HeadLen])
	b.endPiece()
	for _, p := range f.Payload {
		b.addPiece(p)
	}
	tail := b.bytes(int(f.Pad) + packet.ICRCLen)
	clear(tail[:f.Pad])
	putICRC(tail[f.Pad:], f.ICRC)
}

// addCopy is addSegment for a packet whose payload is copied because it is short, or because one of
// its bits is to be inverted.
func (b *txBatch) addCopy(f *TxFrame) { f.put(b.bytes(f.Len+packet.ICRCLen), &b.icrc) }

// setID sets ID to what the frame is sent with.
func (f *TxFrame) setID(a *packet.Addressing) {
	f.ID = a.ID
	if !a.IsIPv4() {
		f.ID = 0
	}
}

// put writes the bytes of the frame, whose ID is set, from BTH to ICRC. It sets ICRC.
func (f *TxFrame) put(s []byte, base *packet.ICRCBase) {
	n := copy(s, f.Head[:f.HeadLen])
	for _, p := range f.Payload {
		n += copy(s[n:], p)
	}
	clear(s[n:f.Len])
	f.ICRC = base.Bytes(f.ID, s[:f.Len])
	putICRC(s[f.Len:], f.ICRC)
	if bit := int(f.Flip) - 1; bit >= 0 && bit < 8*len(s) {
		s[bit/8] ^= 0x80 >> (bit % 8)
	}
}

func putICRC(b []byte, icrc uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(icrc), byte(icrc>>8), byte(icrc>>16), byte(icrc>>24)
}

// endMessage completes the message of n frames. It returns its header, for an address and control
// data, and its number in the batch.
func (b *txBatch) endMessage(n int) (m *mmsghdr, i int) {
	b.endPiece()
	i = b.n
	m = &b.msgs[i]
	m.Iov = &b.pieces[b.first]
	m.SetIovlen(b.used - b.first)
	b.frames[i] = n
	b.n++
	return m, i
}

// runLength returns how many frames from the front of frames can be one super-packet of at most
// limit bytes from the first BTH to the last ICRC.
func runLength(frames []TxFrame, limit int) int {
	f := &frames[0]
	size, pieces := f.Len+packet.ICRCLen, len(f.Payload)+2
	if f.Flip != 0 { // copied, for which there is room for one
		return 1
	}
	if f.Path.Network == packet.RoCEv1 { // the kernel segments UDP only
		return 1
	}
	for n := 1; n < len(frames) && n < maxSegments; n++ {
		g := &frames[n]
		size += g.Len + packet.ICRCLen
		pieces += len(g.Payload) + 1
		if g.Path != f.Path && *g.Path != *f.Path || g.CE != f.CE || g.Flip != 0 || g.Len > f.Len || size > limit || pieces > maxPieces {
			return n
		}
		if g.Len < f.Len {
			return n + 1
		}
	}
	return min(len(frames), maxSegments)
}

// runLimit returns the limit of runLength for an address family.
func runLimit(is4 bool) int {
	const around = ethernetLen + vlanTagLen + udpLen
	if is4 {
		return maxSuperPacket - around - ipv4Len
	}
	return maxSuperPacket - around - ipv6Len
}

// addressing returns the header fields of a frame, except source MAC, ID and checksum.
func (p *Path) addressing(ce bool) packet.Addressing {
	a := packet.Addressing{
		Network: p.Network, Src: p.Src, Dst: p.Dst, TClass: p.TClass, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
		DstMAC: p.DstMAC, SrcPort: p.SrcPort,
	}
	if p.VLAN != 0 {
		a.Tagged, a.TCI = true, p.tci()
	}
	if ce && p.Network == packet.RoCEv2 {
		a.TClass |= 3
	}
	return a
}

// sendable reports whether the addresses of a path are valid, and those of IP packets of one
// family.
func (p *Path) sendable() bool {
	return p != nil && p.Src.IsValid() && p.Dst.IsValid() && p.FamiliesMatch() &&
		!p.Src.Is4In6() && !p.Dst.Is4In6()
}

// FamiliesMatch reports whether one packet can have both addresses. The GIDs of a GRH may be of
// two families: that of an IPv4 multicast group is an IPv6 address.
func (p *Path) FamiliesMatch() bool { return familiesMatch(p.Network, p.Src, p.Dst) }

func familiesMatch(n packet.Network, src, dst netip.Addr) bool {
	return src.Is4() == dst.Is4() || n == packet.RoCEv1 && dst.IsMulticast()
}
