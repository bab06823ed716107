package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Reasons for which a frame is rejected; match with errors.Is. ParseFrame, ParseIP and
// ParseInfiniBand return a *ParseError, which adds the offset.
var (
	ErrNotRoCE   = errors.New("not a RoCE packet")
	ErrTruncated = errors.New("frame is shorter than its headers announce")
	ErrIPHeader  = errors.New("invalid IP version or header length")
	ErrIPOptions = errors.New("IPv4 options in a RoCEv2 packet")
	ErrFragment  = errors.New("fragment of an IP packet")
	ErrUDPLength = errors.New("UDP length does not match IP length")
	ErrGRHLength = errors.New("payload length of the GRH does not match the packet length of the LRH")
)

// ParseError says why a frame was rejected and at which byte.
type ParseError struct {
	Reason error
	Offset int // in the argument of the function
}

func (e *ParseError) Error() string { return fmt.Sprintf("offset %d: %v", e.Offset, e.Reason) }

// Unwrap returns Reason.
func (e *ParseError) Unwrap() error { return e.Reason }

func parseError(reason error, offset int) error { return &ParseError{reason, offset} }

// Frame is a parsed frame: its addressing, and slices of the bytes that it was parsed from.
type Frame struct {
	Addressing
	Link      []byte // of InfiniBand, from LRH to ICRC
	IP        []byte // from IP header or GRH to ICRC; nil without them
	Transport []byte // from BTH to ICRC, at least BTHLen+ICRCLen bytes
	Trailer   []byte // after the ICRC: Ethernet padding, or the VCRC
}

// ParseFrame parses the Ethernet frame b, of RoCE v2 or v1, into f. The slices of f refer to b. It
// allocates only to report an error. A frame of another protocol, and a fragment other than the
// first, gives ErrNotRoCE. ParseFrame does not check the transport headers, the ICRC or the IP
// checksum: see Header.Parse, ICRCOK and IPChecksumOK.
func ParseFrame(b []byte, f *Frame) error {
	n, kind, err := f.parseEthernet(b)
	if err != nil {
		return err
	}
	return f.parseNetwork(b, n, kind)
}

// ParseIP is ParseFrame for a packet that starts with its IP header.
func ParseIP(b []byte, f *Frame) error {
	if len(b) == 0 {
		return parseError(ErrTruncated, 0)
	}
	f.Network, f.LRH, f.Link = RoCEv2, LRH{}, nil
	f.SrcMAC, f.DstMAC, f.Tagged, f.TCI = [6]byte{}, [6]byte{}, false, 0
	switch b[0] >> 4 {
	case 4:
		return f.parseNetwork(b, 0, etherTypeIPv4)
	case 6:
		return f.parseNetwork(b, 0, etherTypeIPv6)
	}
	return parseError(ErrIPHeader, 0)
}

// ParseGRH is ParseFrame for a packet of RoCE v1 that starts with its GRH.
func ParseGRH(b []byte, f *Frame) error {
	f.LRH, f.Link = LRH{}, nil
	f.SrcMAC, f.DstMAC, f.Tagged, f.TCI = [6]byte{}, [6]byte{}, false, 0
	return f.parseGlobal(b, 0)
}

func (f *Frame) parseEthernet(b []byte) (n int, kind uint16, err error) {
	if len(b) < EthernetLen {
		return 0, 0, parseError(ErrTruncated, len(b))
	}
	f.Network, f.LRH, f.Link = RoCEv2, LRH{}, nil
	copy(f.DstMAC[:], b)
	copy(f.SrcMAC[:], b[6:])
	n, kind = EthernetLen, binary.BigEndian.Uint16(b[12:])
	f.Tagged, f.TCI = kind == etherTypeVLAN, 0
	if f.Tagged {
		n += VLANLen
		if len(b) < n {
			return 0, 0, parseError(ErrTruncated, len(b))
		}
		f.TCI = binary.BigEndian.Uint16(b[14:])
		kind = binary.BigEndian.Uint16(b[16:])
	}
	return n, kind, nil
}

// parseNetwork parses the IP packet at b[at:].
func (f *Frame) parseNetwork(b []byte, at int, kind uint16) error {
	var total, header int
	var err error
	switch kind {
	case EtherTypeRoCEv1:
		return f.parseGlobal(b, at)
	case etherTypeIPv4:
		header = IPv4Len
		total, err = f.parseIPv4(b, at)
	case etherTypeIPv6:
		header = IPv6Len
		total, err = f.parseIPv6(b, at, protocolUDP)
	default:
		return parseError(ErrNotRoCE, at-2)
	}
	if err != nil {
		return err
	}
	udp := at + header
	if total < header+UDPLen {
		return parseError(ErrUDPLength, udp)
	}
	// Check the ports before the length: they identify RoCEv2 even in a frame that a capture
	// truncated.
	if len(b) < udp+UDPLen {
		return parseError(ErrTruncated, len(b))
	}
	be := binary.BigEndian
	f.SrcPort, f.DstPort = be.Uint16(b[udp:]), be.Uint16(b[udp+2:])
	f.UDPChecksum = be.Uint16(b[udp+6:])
	if f.DstPort != UDPPort {
		return parseError(ErrNotRoCE, udp+2)
	}
	if int(be.Uint16(b[udp+4:])) != total-header {
		return parseError(ErrUDPLength, udp+4)
	}
	if len(b) < at+total {
		return parseError(ErrTruncated, len(b))
	}
	if total < header+UDPLen+BTHLen+ICRCLen {
		return parseError(ErrShort, at+total)
	}
	f.IP = b[at : at+total]
	f.Transport = f.IP[header+UDPLen:]
	f.Trailer = b[at+total:]
	return nil
}

// parseGlobal parses the packet of RoCE v1 whose GRH is at b[at:].
func (f *Frame) parseGlobal(b []byte, at int) error {
	f.Network, f.SrcPort, f.DstPort, f.UDPChecksum = RoCEv1, 0, 0, 0
	total, err := f.parseGRH(b, at)
	switch {
	case err != nil:
		return err
	case len(b) < at+total:
		return parseError(ErrTruncated, len(b))
	case total < GRHLen+BTHLen+ICRCLen:
		return parseError(ErrShort, at+total)
	}
	f.IP = b[at : at+total]
	f.Transport = f.IP[GRHLen:]
	f.Trailer = b[at+total:]
	return nil
}

// parseGRH parses a GRH that a BTH follows, and returns the length from GRH to ICRC.
func (f *Frame) parseGRH(b []byte, at int) (total int, err error) {
	total, err = f.parseIPv6(b, at, NextHeaderBTH)
	if err != nil {
		return 0, err
	}
	f.Src, f.Dst = f.Src.Unmap(), f.Dst.Unmap()
	return total, nil
}

func (f *Frame) parseIPv4(b []byte, at int) (total int, err error) {
	if len(b) < at+IPv4Len {
		return 0, parseError(ErrTruncated, len(b))
	}
	ip := b[at : at+IPv4Len]
	be := binary.BigEndian
	if ip[0]>>4 != 4 || ip[0]&0xf < IPv4Len/4 {
		return 0, parseError(ErrIPHeader, at)
	}
	flags := be.Uint16(ip[6:])
	switch {
	case ip[9] != protocolUDP:
		return 0, parseError(ErrNotRoCE, at+9)
	case ip[0]&0xf != IPv4Len/4:
		return 0, parseError(ErrIPOptions, at)
	case flags&^flagDF&^flagReserved != 0:
		return 0, parseError(ErrFragment, at+6)
	case flags&flagReserved != 0:
		return 0, parseError(ErrIPHeader, at+6)
	}
	f.TClass, f.HopLimit, f.FlowLabel = ip[1], ip[8], 0
	f.ID, f.MayFragment = be.Uint16(ip[4:]), flags&flagDF == 0
	f.Src = netip.AddrFrom4([4]byte(ip[12:16]))
	f.Dst = netip.AddrFrom4([4]byte(ip[16:20]))
	return int(be.Uint16(ip[2:])), nil
}

// parseIPv6 parses an IPv6 header or a GRH, which has the same layout, if it announces the header
// with number next.
func (f *Frame) parseIPv6(b []byte, at int, next uint8) (total int, err error) {
	if len(b) < at+IPv6Len {
		return 0, parseError(ErrTruncated, len(b))
	}
	ip := b[at : at+IPv6Len]
	be := binary.BigEndian
	w := be.Uint32(ip)
	if w>>28 != 6 {
		return 0, parseError(ErrIPHeader, at)
	}
	if ip[6] != next {
		return 0, parseError(ErrNotRoCE, at+6)
	}
	f.TClass, f.FlowLabel, f.HopLimit = uint8(w>>20), w&0xfffff, ip[7]
	f.ID, f.MayFragment = 0, false
	f.Src = netip.AddrFrom16([16]byte(ip[8:24]))
	f.Dst = netip.AddrFrom16([16]byte(ip[24:40]))
	return IPv6Len + int(be.Uint16(ip[4:])), nil
}

// ICRC returns the ICRC in the frame.
func (f *Frame) ICRC() uint32 {
	return binary.LittleEndian.Uint32(f.Transport[len(f.Transport)-ICRCLen:])
}

// ICRCOK reports whether the ICRC is correct.
func (f *Frame) ICRCOK() bool {
	covered := f.Transport[:len(f.Transport)-ICRCLen]
	return ICRCBytes(&f.Addressing, covered) == f.ICRC()
}

// IPChecksumOK reports whether the IPv4 header checksum is correct. It is true for packets without
// an IPv4 header.
func (f *Frame) IPChecksumOK() bool {
	return !f.IsIPv4() || ipv4Checksum(f.IP) == 0
}

// AppendFrame appends a complete frame to b: the headers of a, the packet t, its ICRC, and the VCRC
// of InfiniBand. It copies the payload, and is meant for tests and captures.
func AppendFrame(b []byte, a *Addressing, t *Tx) []byte {
	at := len(b)
	b = append(b, make([]byte, a.HeaderLen())...)
	a.PutHeaders(b[at:], t.Len+ICRCLen)
	b = append(b, t.Head[:t.HeadLen]...)
	for _, p := range t.Payload {
		b = append(b, p...)
	}
	b = append(b, padding[:t.Pad]...)
	b = binary.LittleEndian.AppendUint32(b, ICRCTx(a, t))
	if a.Network == InfiniBand {
		b = binary.LittleEndian.AppendUint16(b, VCRC(b[at:]))
	}
	return b
}
