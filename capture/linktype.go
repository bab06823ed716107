package capture

import (
	"encoding/binary"
	"errors"
	"fmt"

	"softroce/packet"
)

// LinkType is the number of a link-layer header in a capture file.
type LinkType uint32

// Link types that are read, under their numbers of the tcpdump registry.
const (
	Ethernet LinkType = 1
	RawIP    LinkType = 101 // begins with the IP header
	LinuxSLL LinkType = 113 // "cooked", as of tcpdump -i any
	LinuxSL2 LinkType = 276 // cooked, version 2
)

// ErrLinkType means that a capture's frames begin with a header that is not read.
var ErrLinkType = errors.New("link type is not read: want Ethernet (1), raw IP (101) or Linux cooked (113, 276)")

func (l LinkType) check() error {
	switch l {
	case Ethernet, RawIP, LinuxSLL, LinuxSL2:
		return nil
	}
	return fmt.Errorf("link type %d: %w", l, ErrLinkType)
}

// parse parses a frame that begins with the header of l. A frame of a link type that is
// not read, which a pcapng file may have among others, is no RoCEv2.
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
	}
	return &packet.ParseError{Reason: packet.ErrNotRoCE}
}

// parseCooked parses a frame with a cooked header of n bytes that has the Ethernet type
// of what follows at byte kind.
func parseCooked(b []byte, n, kind int, f *packet.Frame) error {
	if len(b) < n {
		return &packet.ParseError{Reason: packet.ErrTruncated, Offset: len(b)}
	}
	switch binary.BigEndian.Uint16(b[kind:]) {
	case 0x0800, 0x86dd:
	default:
		return &packet.ParseError{Reason: packet.ErrNotRoCE, Offset: kind}
	}
	err := packet.ParseIP(b[n:], f)
	var pe *packet.ParseError
	if errors.As(err, &pe) {
		pe.Offset += n
	}
	return err
}
