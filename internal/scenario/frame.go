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

// Whole frames: what is around a packet, for a cable that brings anything.

// ways are the links whose way a frame can go.
var ways = vocabulary[wire.InjectAs]{"cable", map[string]wire.InjectAs{"packet": wire.InjectAsPacket, "dgram": wire.InjectAsDgram}}

// headersAt says where the headers of a frame are.
type headersAt struct {
	ip, udp int
	is4     bool
}

// A frameField is a field of the headers around a packet.
type frameField struct {
	name string
	bits int // 4: the upper half of a byte unless low
	low  bool
	at   func(headersAt) int // -1: there is none
}

// either chooses between the offsets that IPv4 and IPv6 headers have a field at.
func either(four, six int) func(headersAt) int {
	return func(h headersAt) int {
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

func inUDP(off int) func(headersAt) int { return func(h headersAt) int { return h.udp + off } }

var frameFields = []frameField{
	{"eth.type", 16, false, func(h headersAt) int { return h.ip - 2 }},
	{"ip.version", 4, false, either(0, 0)},
	{"ip.header_length", 4, true, either(0, -1)},
	{"ip.length", 16, false, either(2, 4)},
	{"ip.fragment", 16, false, either(6, -1)},
	{"ip.protocol", 8, false, either(9, 6)},
	{"ip.checksum", 16, false, either(10, -1)},
	{"udp.port", 16, false, inUDP(2)},
	{"udp.length", 16, false, inUDP(4)},
	{"udp.checksum", 16, false, inUDP(6)},
}

// set writes v over the field in frame, as far as that goes.
func (f *frameField) set(frame []byte, h headersAt, v uint64) error {
	at := f.at(h)
	if at < 0 {
		return fmt.Errorf("an IPv6 header has no %s", f.name)
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

// A frameEdit is what the script wants to be different around a packet.
type frameEdit struct {
	way    wire.InjectAs
	dst    net.HardwareAddr // nil: as it is
	values map[string]uint64
	right  bool // the UDP checksum is to be that of the datagram
	cut    int  // bytes to be left; 0: all
}

// frameEdit takes cable=LINK and what goes with it; nil stands for a packet that comes the ordinary way.
func (s *stage) frameEdit(w *words) (*frameEdit, error) {
	cable, ok := w.option("cable")
	if !ok {
		return nil, nil
	}
	way, err := ways.parse(cable)
	if err := errors.Join(err, s.testbed.Frames()); err != nil {
		return nil, err
	}
	e := &frameEdit{way: way, values: map[string]uint64{}}
	if v, ok := w.option("eth.dst"); ok {
		if e.dst, err = net.ParseMAC(v); err != nil || len(e.dst) != 6 {
			return nil, fmt.Errorf("eth.dst=%s: must be a MAC", v)
		}
	}
	if v, ok := w.peek("udp.checksum"); ok && v == "right" {
		w.option("udp.checksum")
		e.right = true
	}
	for _, f := range frameFields {
		if _, ok := w.peek(f.name); !ok {
			continue
		}
		v := uint64(0)
		if err := w.number(f.name, f.bits, &v); err != nil {
			return nil, err
		}
		e.values[f.name] = v
	}
	cut := uint64(0)
	err = w.number("frame.cut", 16, &cut)
	e.cut = int(cut)
	return e, err
}

// frame is the Ethernet frame around f.
func (e *frameEdit) frame(f *wire.TxFrame) ([]byte, error) {
	p := f.Path
	a := packet.Addressing{SrcMAC: testbed.PeerMAC, DstMAC: p.DstMAC, Tagged: p.VLAN != 0 || p.Priority != 0,
		TCI: uint16(p.Priority)<<13 | p.VLAN, Src: p.Src, Dst: p.Dst, TClass: p.TClass, HopLimit: p.HopLimit, SrcPort: p.SrcPort}
	b := packet.AppendFrame(nil, &a, &f.Tx)
	h := headersAt{ip: a.HeaderLen() - a.IPHeaderLen(), udp: a.HeaderLen() - packet.UDPLen, is4: a.Src.Is4()}
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
	if e.right {
		binary.BigEndian.PutUint16(b[h.udp+6:], ^onesSum(pseudoHeader(&a, len(b)-h.udp), b[h.udp:]))
	}
	if e.cut > 0 {
		b = b[:min(e.cut, len(b))]
	}
	return b, nil
}

// onesSum adds 16-bit words in ones' complement (RFC 1071). Only the last part may have an odd length.
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

// pseudoHeader is what a UDP checksum covers besides the n bytes of the datagram.
func pseudoHeader(a *packet.Addressing, n int) []byte {
	b := append(a.Src.AsSlice(), a.Dst.AsSlice()...)
	return append(binary.BigEndian.AppendUint32(b, uint32(n)), 0, 0, 0, 17)
}

// cmdFrame puts bytes on the cable as a frame: frame packet|dgram DATA [and].
func (s *stage) cmdFrame(w *words) error {
	cable, err := w.next("the kind of link that the cable is of")
	if err != nil {
		return err
	}
	way, err := ways.parse(cable)
	if err := errors.Join(err, s.testbed.Frames()); err != nil {
		return err
	}
	d, err := w.next("data")
	if err != nil {
		return err
	}
	frame, err := parseData(d)
	if err != nil {
		return err
	}
	more := w.flag("and")
	if err := w.end(); err != nil {
		return err
	}
	return s.sendFrame(way, frame, more, false)
}

func (s *stage) sendFrame(way wire.InjectAs, frame []byte, more, aside bool) error {
	if len(frame) == 0 || len(frame) > maxFrame {
		return errors.New("a frame has 1 to 65535 bytes")
	}
	s.acts(more, aside)
	if err := s.testbed.SendFrame(way, frame); err != nil {
		return err
	}
	s.carryOn(more)
	return nil
}

// maxFrame bounds a frame, in bytes.
const maxFrame = 65535
