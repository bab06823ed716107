package scenario

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/wire"
)

// Whole frames: the headers around a packet, for links that may deliver any frame.

// linkKinds are the kinds of link by which a frame can be delivered.
var linkKinds = vocabulary[wire.InjectAs]{"cable", map[string]wire.InjectAs{"packet": wire.InjectAsPacket, "dgram": wire.InjectAsDgram}}

// headerOffsets are the offsets of a frame's headers.
type headerOffsets struct {
	ip, udp int
	is4, v1 bool
}

// A frameField is a field of the headers around a packet.
type frameField struct {
	name string
	bits int // 4: the upper half of a byte, or the lower one if low
	low  bool
	at   func(headerOffsets) int // -1: the header has no such field
}

// ipOffset returns the offset of a field in the IP header, given its offsets in IPv4 and IPv6.
func ipOffset(four, six int) func(headerOffsets) int {
	return func(h headerOffsets) int {
		off := six
		if h.is4 {
			off = four
		}
		if off < 0 {
			return -1
		}
		return h.ip + off
	}
}

func udpOffset(off int) func(headerOffsets) int {
	return func(h headerOffsets) int {
		if h.v1 {
			return -1
		}
		return h.udp + off
	}
}

var frameFields = []frameField{
	{"eth.type", 16, false, func(h headerOffsets) int { return h.ip - 2 }},
	{"ip.version", 4, false, ipOffset(0, 0)},
	{"ip.header_length", 4, true, ipOffset(0, -1)},
	{"ip.length", 16, false, ipOffset(2, 4)},
	{"ip.fragment", 16, false, ipOffset(6, -1)},
	{"ip.protocol", 8, false, ipOffset(9, 6)},
	{"ip.checksum", 16, false, ipOffset(10, -1)},
	{"udp.port", 16, false, udpOffset(2)},
	{"udp.length", 16, false, udpOffset(4)},
	{"udp.checksum", 16, false, udpOffset(6)},
}

// set overwrites the field in a frame.
func (f *frameField) set(frame []byte, h headerOffsets, v uint64) error {
	at := f.at(h)
	if at < 0 {
		return fmt.Errorf("the headers have no %s", f.name)
	}
	switch {
	case f.bits == 16:
		binary.BigEndian.PutUint16(frame[at:], uint16(v))
	case f.bits == 8:
		frame[at] = byte(v)
	case f.low:
		frame[at] = frame[at]&0xf0 | byte(v)
	default:
		frame[at] = frame[at]&0x0f | byte(v)<<4
	}
	return nil
}

// A frameEdit holds the changes that the script makes to the headers around a packet.
type frameEdit struct {
	kind            wire.InjectAs
	dst             net.HardwareAddr // nil: unchanged
	values          map[string]uint64
	correctChecksum bool // insert the correct UDP checksum
	cut             int  // bytes to keep; 0: all
}

// parseFrameEdit parses cable=LINK and the frame fields. It returns nil for a packet sent the
// ordinary way.
func (s *script) parseFrameEdit(args *arguments) (*frameEdit, error) {
	name, ok := args.option("cable")
	if !ok {
		return nil, nil
	}
	kind, err := linkKinds.parse(name)
	if err := errors.Join(err, s.testbed.Frames()); err != nil {
		return nil, err
	}
	e := &frameEdit{kind: kind, values: map[string]uint64{}}
	if v, ok := args.option("eth.dst"); ok {
		if e.dst, err = net.ParseMAC(v); err != nil || len(e.dst) != 6 {
			return nil, fmt.Errorf("eth.dst=%s: want a MAC address", v)
		}
	}
	if v, ok := args.peek("udp.checksum"); ok && v == "right" {
		args.option("udp.checksum")
		e.correctChecksum = true
	}
	for _, f := range frameFields {
		if _, ok := args.peek(f.name); !ok {
			continue
		}
		v := uint64(0)
		if err := args.number(f.name, f.bits, &v); err != nil {
			return nil, err
		}
		e.values[f.name] = v
	}
	cut := uint64(0)
	err = args.number("frame.cut", 16, &cut)
	e.cut = int(cut)
	return e, err
}

// build returns the Ethernet frame around f, with the changes.
func (e *frameEdit) build(f *wire.TxFrame) ([]byte, error) {
	p := f.Path
	a := packet.Addressing{Network: p.Network, SrcMAC: testbed.PeerMAC, DstMAC: p.DstMAC, Tagged: p.VLAN != 0 || p.Priority != 0,
		TCI: uint16(p.Priority)<<13 | p.VLAN, Src: p.Src, Dst: p.Dst, TClass: p.TClass, HopLimit: p.HopLimit, SrcPort: p.SrcPort}
	b := packet.AppendFrame(nil, &a, &f.Tx)
	h := headerOffsets{ip: a.HeaderLen() - a.IPHeaderLen(), udp: a.HeaderLen() - packet.UDPLen, is4: a.IsIPv4(), v1: p.Network == packet.RoCEv1}
	if bit := int(f.Flip) - 1; bit >= 0 {
		b[a.HeaderLen()+bit/8] ^= 0x80 >> (bit % 8)
	}
	if e.dst != nil {
		copy(b, e.dst)
	}
	for _, field := range frameFields {
		v, ok := e.values[field.name]
		if !ok {
			continue
		}
		if err := field.set(b, h, v); err != nil {
			return nil, err
		}
	}
	if _, given := e.values["ip.checksum"]; h.is4 && !given {
		binary.BigEndian.PutUint16(b[h.ip+10:], 0)
		binary.BigEndian.PutUint16(b[h.ip+10:], ^onesSum(b[h.ip:][:packet.IPv4Len]))
	}
	if e.correctChecksum {
		binary.BigEndian.PutUint16(b[h.udp+6:], ^onesSum(pseudoHeader(&a, len(b)-h.udp), b[h.udp:]))
	}
	if e.cut > 0 {
		b = b[:min(e.cut, len(b))]
	}
	return b, nil
}

// onesSum adds 16-bit words in ones' complement (RFC 1071). Only the last part may have an odd
// length.
func onesSum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, b := range parts {
		for i, c := range b {
			sum += uint32(c) << (8 * (1 - i%2))
			sum = sum>>16 + sum&0xffff
		}
	}
	return uint16(sum)
}

// pseudoHeader returns the pseudo header of a UDP checksum for a datagram of n bytes.
func pseudoHeader(a *packet.Addressing, n int) []byte {
	b := append(a.Src.AsSlice(), a.Dst.AsSlice()...)
	return append(binary.BigEndian.AppendUint32(b, uint32(n)), 0, 0, 0, 17)
}

// cmdFrame sends bytes as a frame: frame packet|dgram DATA [and].
func (s *script) cmdFrame(args *arguments) error {
	name, err := args.next("a kind of link, packet or dgram")
	if err != nil {
		return err
	}
	kind, err := linkKinds.parse(name)
	if err := errors.Join(err, s.testbed.Frames()); err != nil {
		return err
	}
	d, err := args.next("data")
	if err != nil {
		return err
	}
	frame, err := parseData(d)
	if err != nil {
		return err
	}
	more := args.flag("and")
	if err := args.end(); err != nil {
		return err
	}
	return s.sendFrame(kind, frame, more, false)
}

func (s *script) sendFrame(kind wire.InjectAs, frame []byte, more, aside bool) error {
	if len(frame) == 0 || len(frame) > maxFrame {
		return fmt.Errorf("frame of %d bytes: want 1 to %d", len(frame), maxFrame)
	}
	s.noteAction(more, aside)
	if err := s.testbed.SendFrame(kind, frame); err != nil {
		return err
	}
	s.commit(more)
	return nil
}

// maxFrame bounds the length of a frame, in bytes.
const maxFrame = 65535
