package capture

import (
	"encoding/binary"
	"errors"
	"fmt"

	"softroce/packet"
)

// A LinkType is the number of a link-layer header type in a capture file.
type LinkType uint32

// Link types that can be read, with their numbers in the tcpdump registry.
const (
	Ethernet LinkType = 1
	RawIP    LinkType = 101 // begins with the IP header
	LinuxSLL LinkType = 113 // "cooked", as written by tcpdump -i any
	LinuxSL2 LinkType = 276 // cooked, version 2

	ERF        LinkType = 197 // records of Endace's format: see erf.go
	InfiniBand LinkType = 247 // begins with the LRH
)

// ErrLinkType means that the frames of a capture have an unsupported link type.
var ErrLinkType = errors.New("unsupported link type: want Ethernet (1), raw IP (101), Linux cooked (113, 276), InfiniBand (247) or ERF (197)")

func (l LinkType) check() error {
	switch l {
	case Ethernet, RawIP, LinuxSLL, LinuxSL2, ERF, InfiniBand:
		return nil
	}
	return fmt.Errorf("link type %d: %w", l, ErrLinkType)
}

// parse parses a frame with the header of l. A frame with an unsupported link type, which a pcapng
// file may contain among others, is not a RoCE packet.
func (l LinkType) parse(b []byte, f *packet.Frame) error {
	switch l {
	case Ethernet:
		return packet.ParseFrame(b, f)
	case RawIP:
		return packet.ParseIP(b, f)
	case LinuxSLL:
		return parseCooked(b, 16, 14, f)
	case LinuxSL2:
		return parseCooked(b, 20, 0, f)
	case InfiniBand:
		return packet.ParseInfiniBand(b, f)
	case ERF: // a record that erfFrame could not take apart
		return &packet.ParseError{Reason: packet.ErrTruncated, Offset: len(b)}
	}
	return &packet.ParseError{Reason: packet.ErrNotRoCE}
}

// parseCooked parses a frame with a cooked header of n bytes, which has the Ethernet type at offset
// kind.
func parseCooked(b []byte, n, kind int, f *packet.Frame) error {
	if len(b) < n {
		return &packet.ParseError{Reason: packet.ErrTruncated, Offset: len(b)}
	}
	parse := packet.ParseIP
	switch binary.BigEndian.Uint16(b[kind:]) {
	case 0x0800, 0x86dd:
	case packet.EtherTypeRoCEv1:
		parse = packet.ParseGRH
	default:
		return &packet.ParseError{Reason: packet.ErrNotRoCE, Offset: kind}
	}
	err := parse(b[n:], f)
	var pe *packet.ParseError
	if errors.As(err, &pe) {
		pe.Offset += n
	}
	return err
}
