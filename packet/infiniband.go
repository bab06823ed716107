package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Lengths in bytes.
const (
	LRHLen  = 8
	VCRCLen = 2
)

// Values of LRH.LNH, the link next header (IBTA 7.7.5). Packets with the others are raw: they do
// not have a BTH.
const (
	LNHLocal  = 2 // BTH
	LNHGlobal = 3 // GRH
)

// LRH is the local route header of InfiniBand (IBTA 7.7), except for the packet length, which
// follows from the packet.
type LRH struct {
	VL         uint8 // virtual lane, 4 bits
	LVer       uint8 // link version, 4 bits, 0 in every valid packet
	SL         uint8 // service level, 4 bits
	Reserved2  uint8 // 2 bits before LNH
	LNH        uint8 // link next header, 2 bits
	DLID, SLID uint16
	Reserved5  uint8 // 5 bits before the packet length
}

// lrhMasked is what the ICRC takes as ones in an LRH that is read least significant byte first: the
// VL.
const lrhMasked = 0xf0

// maxPktLen is the packet length that fits into its 11 bits, in words of four bytes.
const maxPktLen = 1<<11 - 1

// put writes the LRH of a packet of n bytes, from LRH to ICRC.
func (h *LRH) put(b []byte, n int) int {
	_ = b[LRHLen-1]
	be := binary.BigEndian
	b[0] = h.VL<<4 | h.LVer&0xf
	b[1] = h.SL<<4 | h.Reserved2&3<<2 | h.LNH&3
	be.PutUint16(b[2:], h.DLID)
	be.PutUint16(b[4:], uint16(h.Reserved5)<<11|uint16(n/4)&maxPktLen)
	be.PutUint16(b[6:], h.SLID)
	return LRHLen
}

// parse reads the LRH at the start of b and returns the length that it announces.
func (h *LRH) parse(b []byte) (n int) {
	_ = b[LRHLen-1]
	be := binary.BigEndian
	w := be.Uint16(b[4:])
	*h = LRH{
		VL: b[0] >> 4, LVer: b[0] & 0xf, SL: b[1] >> 4, Reserved2: b[1] >> 2 & 3, LNH: b[1] & 3,
		DLID: be.Uint16(b[2:]), SLID: be.Uint16(b[6:]), Reserved5: uint8(w >> 11),
	}
	return int(w&maxPktLen) * 4
}

// lidZone marks the address of a LID.
const lidZone = "lid"

// LIDAddr returns the address of a LID in Addressing: the IPv6 address that ends with it, in the
// zone "lid". LID 20 is ::14%lid.
func LIDAddr(lid uint16) netip.Addr {
	return netip.AddrFrom16([16]byte{14: byte(lid >> 8), 15: byte(lid)}).WithZone(lidZone)
}

// IsMulticastLID reports whether a LID is that of a multicast group (IBTA 4.1.3). The permissive
// LID 0xffff is none.
func IsMulticastLID(lid uint16) bool { return lid >= 0xc000 && lid < 0xffff }

// ParseInfiniBand is ParseFrame for an InfiniBand packet, which starts with its LRH. A raw packet
// gives ErrNotRoCE.
func ParseInfiniBand(b []byte, f *Frame) error {
	if len(b) < LRHLen {
		return parseError(ErrTruncated, len(b))
	}
	f.Addressing = Addressing{Network: InfiniBand}
	n := f.LRH.parse(b)
	header := LRHLen
	switch f.LRH.LNH {
	case LNHLocal:
		f.Src, f.Dst, f.IP = LIDAddr(f.LRH.SLID), LIDAddr(f.LRH.DLID), nil
	case LNHGlobal:
		header += GRHLen
		total, err := f.parseGRH(b, LRHLen)
		if err != nil {
			return err
		}
		if LRHLen+total != n {
			return parseError(ErrGRHLength, LRHLen+4)
		}
	default:
		return parseError(fmt.Errorf("%w: raw packet, LNH %d", ErrNotRoCE, f.LRH.LNH), 1)
	}
	switch {
	case n < header+BTHLen+ICRCLen:
		return parseError(ErrShort, 4)
	case len(b) < n:
		return parseError(ErrTruncated, len(b))
	}
	f.Link, f.Transport, f.Trailer = b[:n], b[header:n], b[n:]
	if f.LRH.LNH == LNHGlobal {
		f.IP = b[LRHLen:n]
	}
	return nil
}

// vcrcPolynomial is x^16 + x^12 + x^3 + x + 1, bit-reversed: the highest bit is x^0.
const vcrcPolynomial = 0xd008

var vcrcTable = buildVCRCTable()

func buildVCRCTable() (t [256]uint16) {
	for i := range t {
		c := uint16(i)
		for range 8 {
			c = c>>1 ^ vcrcPolynomial&-(c&1)
		}
		t[i] = c
	}
	return t
}

// VCRC returns the variant CRC (IBTA 7.8.2) of an InfiniBand packet. b has the bytes from LRH to
// ICRC. Like the ICRC it is sent least significant byte first.
func VCRC(b []byte) uint16 {
	c := ^uint16(0)
	for _, x := range b {
		c = vcrcTable[byte(c)^x] ^ c>>8
	}
	return ^c
}

// VCRC returns the variant CRC of an InfiniBand packet; false if the frame does not have it, since
// many captures end with the ICRC.
func (f *Frame) VCRC() (vcrc uint16, ok bool) {
	if f.Network != InfiniBand || len(f.Trailer) < VCRCLen {
		return 0, false
	}
	return binary.LittleEndian.Uint16(f.Trailer), true
}

// VCRCOK reports whether the variant CRC, if the frame has one, is correct.
func (f *Frame) VCRCOK() bool {
	vcrc, ok := f.VCRC()
	return !ok || vcrc == VCRC(f.Link)
}
