package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// A PortSpace is a name space of ports of the RDMA IP CM service (IBTA annex A11): enum
// rdma_port_space.
type PortSpace uint16

// Port spaces. The low byte is the number of the IP protocol of the same name.
const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106
	PortSpaceUDP   PortSpace = 0x0111
	PortSpaceIB    PortSpace = 0x013f
)

func (p PortSpace) String() string {
	switch p {
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	case PortSpaceIPoIB:
		return "IPoIB"
	}
	return "unknown"
}

// ServiceID returns the service ID of a port.
func ServiceID(ps PortSpace, port uint16) uint64 { return uint64(ps)<<16 | uint64(port) }

// ParseServiceID is the inverse of ServiceID; false if the service is not a port of TCP or UDP.
func ParseServiceID(id uint64) (ps PortSpace, port uint16, ok bool) {
	ps, port = PortSpace(id>>16), uint16(id)
	return ps, port, id>>32 == 0 && (ps == PortSpaceTCP || ps == PortSpaceUDP)
}

// IPHeaderSize is the length of the header that the RDMA IP CM service puts before the private data
// of a REQ or SIDR_REQ.
const IPHeaderSize = 36

// Bytes of private data that remain for programs.
const (
	MaxREQData     = REQPrivate - IPHeaderSize
	MaxSIDRREQData = SIDRREQPrivate - IPHeaderSize
)

// ErrIPHeader: the private data does not begin with the header of the RDMA IP CM service.
var ErrIPHeader = errors.New("private data without the header of the RDMA IP CM service")

// IPHeader is the header of the RDMA IP CM service in a REQ or SIDR_REQ: the addresses of both
// sides and the port of the sender.
type IPHeader struct {
	SrcPort  uint16
	Src, Dst netip.Addr // of the same family
}

// Put writes the header to the first IPHeaderSize bytes of b.
func (h *IPHeader) Put(b []byte) {
	clear(b[:IPHeaderSize])
	b[1] = 6 << 4
	if h.Src.Is4() {
		b[1] = 4 << 4
	}
	binary.BigEndian.PutUint16(b[2:], h.SrcPort)
	putAddr(b[4:20], h.Src)
	putAddr(b[20:36], h.Dst)
}

// putAddr writes an IPv4 address to the last four bytes.
func putAddr(b []byte, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		copy(b[12:], v[:])
		return
	}
	v := a.As16()
	copy(b, v[:])
}

// ParseIPHeader reads the header. The error is ErrIPHeader.
func ParseIPHeader(b []byte) (h IPHeader, err error) {
	if len(b) < IPHeaderSize || b[0] != 0 {
		return h, ErrIPHeader
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:20])), netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:20])), netip.AddrFrom16([16]byte(b[20:36]))
		if h.Src.Is4In6() || h.Dst.Is4In6() {
			return h, ErrIPHeader
		}
	default:
		return h, ErrIPHeader
	}
	return h, nil
}
