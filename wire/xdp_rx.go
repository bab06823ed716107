package wire

import (
	"encoding/binary"

	"softroce/packet"
)

// An xdpDecoder takes frames of an AF_XDP socket apart. A super-packet, which a peer on this host
// sends, or receive offload makes, arrives as one frame that does not say how long its packets are.
// The ICRC tells: the first packet ends where it is correct.
type xdpDecoder struct {
	packetDecoder
	fresh bool // no packet of the frame was returned
	last  int  // length of the packets of the last super-packet
}

// longestPacket is the length of the longest RoCEv2 packet from BTH to ICRC: path MTU 4096, with
// more extended headers than any opcode has.
const longestPacket = 4096 + 64 + packet.ICRCLen

// load takes a frame. It reports whether it may hold packets, or why not. A local sender leaves the
// UDP checksum of a frame to hardware that it does not pass: it is the sum of the pseudo-header.
func (d *xdpDecoder) load(b []byte) (Drop, bool) {
	d.rest = nil
	if reason, ok := d.parse(b); !ok {
		return reason, false
	}
	f := &d.frame
	if f.UDPChecksum != 0 && f.UDPChecksum != pseudoChecksum(&f.Addressing, len(f.Transport)) && !udpChecksumOK(f) {
		return DropUDPChecksum, false
	}
	d.firstID, d.fresh = f.ID, true
	d.cutInto(len(f.Transport))
	return 0, true
}

// cutInto begins to cut the frame into packets of size bytes.
func (d *xdpDecoder) cutInto(size int) {
	d.begin(d.frame.Transport)
	d.size = size
}

// next sets f to the next packet of the frame and reports whether there was one.
func (d *xdpDecoder) next(f *RxFrame) bool {
	if !d.fresh || len(d.rest) == 0 {
		return d.packetDecoder.next(f)
	}
	d.fresh = false
	whole := d.size
	if d.frame.Network == packet.RoCEv1 {
		return d.packetDecoder.next(f)
	}
	if whole <= longestPacket && d.packetDecoder.next(f) && !f.BadICRC {
		return true
	}
	d.cutInto(d.firstPacket(whole))
	return d.packetDecoder.next(f)
}

// firstPacket returns the length of the first packet of a frame with whole bytes from the first BTH
// to the last ICRC: whole if no ICRC is correct.
func (d *xdpDecoder) firstPacket(whole int) int {
	if d.startsWithPacket(d.last) {
		return d.last
	}
	const least = packet.BTHLen + packet.ICRCLen
	for n := least; n <= min(whole-least, longestPacket); n += 4 {
		if d.continuesAt(n) && d.startsWithPacket(n) {
			d.last = n
			return n
		}
	}
	return whole
}

// continuesAt reports whether the bytes from n on look like the next packet of the first one's
// queue pair, or of another in its partition.
func (d *xdpDecoder) continuesAt(n int) bool {
	const service, version, reserved, reservedPSN = 0xe0, 0x0f, 0x3f, 0x7f
	a, b := d.frame.Transport, d.frame.Transport[n:]
	return (a[0]^b[0])&service == 0 && (a[1]^b[1])&version == 0 && a[2] == b[2] && a[3] == b[3] &&
		b[4]&reserved == 0 && b[8]&reservedPSN == 0
}

// startsWithPacket reports whether the first n bytes of the frame are a packet of a super-packet.
func (d *xdpDecoder) startsWithPacket(n int) bool {
	b := d.frame.Transport
	if n == 0 || n >= len(b) || (len(b)+n-1)/n > maxSegments {
		return false
	}
	a := d.frame.Addressing
	a.ID = d.firstID
	return packet.ICRCBytes(&a, b[:n-packet.ICRCLen]) == binary.LittleEndian.Uint32(b[n-packet.ICRCLen:])
}
