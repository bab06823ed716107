package wire

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"softroce/packet"
)

// virtioHeader is struct virtio_net_hdr, which precedes each frame of the socket.
type virtioHeader struct {
	flags, gsoType       uint8
	hdrLen, gsoSize      uint16 // bytes of the first piece of the kernel's buffer; length of a segment from BTH to ICRC
	csumStart, csumStore uint16 // where the checksummed bytes begin; offset of the checksum from there
}

const (
	virtioLen = 10

	virtioNeedsChecksum = 1 // the checksum field holds the sum of the pseudo-header
	virtioDataValid     = 2 // the checksum was verified

	virtioUDPSegments = 5    // VIRTIO_NET_HDR_GSO_UDP_L4
	virtioFragments   = 3    // VIRTIO_NET_HDR_GSO_UDP: one datagram, in IP fragments
	virtioECN         = 0x80 // a flag in the type

	udpChecksumAt = 6 // offset in the UDP header
)

// put writes v in native byte order, as the legacy format requires.
func (v *virtioHeader) put(b []byte) {
	_ = b[virtioLen-1]
	ne := binary.NativeEndian
	b[0], b[1] = v.flags, v.gsoType
	ne.PutUint16(b[2:], v.hdrLen)
	ne.PutUint16(b[4:], v.gsoSize)
	ne.PutUint16(b[6:], v.csumStart)
	ne.PutUint16(b[8:], v.csumStore)
}

func (v *virtioHeader) parse(b []byte) {
	_ = b[virtioLen-1]
	ne := binary.NativeEndian
	v.flags, v.gsoType = b[0], b[1]&^virtioECN
	v.hdrLen, v.gsoSize = ne.Uint16(b[2:]), ne.Uint16(b[4:])
	v.csumStart, v.csumStore = ne.Uint16(b[6:]), ne.Uint16(b[8:])
}

// segment requests segments of size bytes. Linux segments UDP only if it also completes the
// checksums.
func (v *virtioHeader) segment(a *packet.Addressing, size int) {
	n := a.HeaderLen()
	v.flags, v.gsoType = virtioNeedsChecksum, virtioUDPSegments
	v.gsoSize = uint16(size)
	v.csumStart, v.csumStore = uint16(n-packet.UDPLen), udpChecksumAt
}

// pseudoChecksum returns the sum of the pseudo-header of a datagram with n bytes from BTH on, which
// the kernel expects in the checksum field that it is to complete.
func pseudoChecksum(a *packet.Addressing, n int) uint16 {
	var pseudo [40]byte
	src, dst := a.Src.As16(), a.Dst.As16()
	copy(pseudo[:], src[:])
	copy(pseudo[16:], dst[:])
	if a.Src.Is4() { // without the prefix of the IPv4-mapped form
		clear(pseudo[:12])
		clear(pseudo[16:28])
	}
	binary.BigEndian.PutUint32(pseudo[32:], uint32(n+packet.UDPLen))
	pseudo[39] = 17
	return onesComplementSum(pseudo[:], 0)
}

// onesComplementSum adds the 16-bit words of b to sum in ones' complement (RFC 1071). A zero byte
// is added to an odd b.
func onesComplementSum(b []byte, sum uint16) uint16 {
	be := binary.BigEndian
	acc, carry := uint64(sum), uint64(0)
	for ; len(b) >= 32; b = b[32:] {
		acc, carry = bits.Add64(acc, be.Uint64(b), carry)
		acc, carry = bits.Add64(acc, be.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, be.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, be.Uint64(b[24:]), carry)
	}
	for ; len(b) >= 8; b = b[8:] {
		acc, carry = bits.Add64(acc, be.Uint64(b), carry)
	}
	var last [8]byte
	copy(last[:], b)
	acc, carry = bits.Add64(acc, be.Uint64(last[:]), carry)
	acc = acc>>32 + acc&0xffffffff + carry
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc)
}

// udpChecksumOK reports whether the UDP checksum of f is correct.
func udpChecksumOK(f *packet.Frame) bool {
	n := len(f.Transport)
	udp := f.IP[len(f.IP)-n-packet.UDPLen:]
	return onesComplementSum(udp, pseudoChecksum(&f.Addressing, n)) == 0xffff
}

// A packetDecoder is the rxDecoder of a PacketLink: it cuts the super-packets that the socket
// delivers into packets. It depends on the bytes of the message alone.
type packetDecoder struct {
	segments
	frame   packet.Frame
	firstID uint16 // Identification of the first packet
}

// load implements rxDecoder. A message is a virtio-net header and a frame; its control message
// holds the VLAN tag.
func (d *packetDecoder) load(m rxMessage) (Drop, bool) {
	d.rest = nil
	b := m.data
	if len(b) < virtioLen {
		return DropTruncated, false
	}
	var v virtioHeader
	v.parse(b)
	if reason, ok := d.parse(b[virtioLen:]); !ok {
		return reason, false
	}
	f := &d.frame
	d.size = len(f.Transport)
	switch {
	case f.Network == packet.RoCEv1:
	case v.gsoType == virtioUDPSegments && v.gsoSize > 0:
		d.size = int(v.gsoSize)
	case v.gsoType == virtioFragments:
		return DropFragment, false
	case f.UDPChecksum != 0 && v.flags&(virtioNeedsChecksum|virtioDataValid) == 0 && !udpChecksumOK(f):
		return DropUDPChecksum, false
	}
	d.begin(f.Transport)
	d.firstID = f.ID
	d.setTag(m.control)
	return 0, true
}

// parse checks an Ethernet frame up to its UDP length.
func (d *packetDecoder) parse(b []byte) (Drop, bool) {
	f := &d.frame
	if err := packet.ParseFrame(b, f); err != nil {
		return dropOf(err), false
	}
	if !f.IPChecksumOK() {
		return DropIPChecksum, false
	}
	if f.DstMAC[0]&1 != 0 && !f.Dst.IsMulticast() {
		return DropIPAddress, false // RFC 1122, 3.3.6
	}
	if !familiesMatch(f.Network, f.Src, f.Dst) {
		return DropIPAddress, false
	}
	return 0, true
}

// next implements rxDecoder.
func (d *packetDecoder) next(f *RxFrame) bool {
	b, i := d.cut()
	if b == nil {
		return false
	}
	n := len(b) - packet.ICRCLen
	icrc := binary.LittleEndian.Uint32(b[n:])
	a := &d.frame.Addressing
	base := d.icrcBase(a, n)
	if a.IsIPv4() {
		a.ID = d.firstID + uint16(i)
	}
	good := base.Bytes(a.ID, b[:n]) == icrc
	if !good && i > 0 && a.IsIPv4() {
		// The kernel's receive offload may also join packets that have the same Identification.
		a.ID = d.firstID
		good = base.Bytes(a.ID, b[:n]) == icrc
	}
	*f = RxFrame{
		Head: b[:n:n], Network: a.Network, Src: a.Src, Dst: a.Dst, SrcPort: a.SrcPort, TClass: a.TClass,
		HopLimit: a.HopLimit, FlowLabel: a.FlowLabel, ID: a.ID, SrcMAC: a.SrcMAC, Tagged: a.Tagged, TCI: a.TCI,
		MayFragment: a.MayFragment, ICRC: icrc, BadICRC: !good,
	}
	return true
}

// dropOf returns the reason for an error of packet.ParseFrame.
func dropOf(err error) Drop {
	var e *packet.ParseError
	switch {
	case errors.Is(err, packet.ErrTruncated):
		return DropTruncated
	case errors.Is(err, packet.ErrIPHeader), errors.Is(err, packet.ErrIPOptions):
		return DropIPHeader
	case errors.Is(err, packet.ErrFragment):
		return DropFragment
	case errors.Is(err, packet.ErrUDPLength), errors.Is(err, packet.ErrShort):
		return DropUDPLength
	case errors.As(err, &e) && e.Offset < packet.EthernetLen+packet.VLANLen-1:
		return DropEtherType
	case errors.As(err, &e) && e.Offset < packet.EthernetLen+packet.VLANLen+10:
		return DropIPProtocol
	}
	return DropUDPPort
}
