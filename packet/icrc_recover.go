package packet

import "encoding/binary"

// A UDP socket hides the IPv4 Identification and the DF bit of what it receives,
// which the ICRC covers. CRC is linear: the ICRC of the packet as sent and that of
// the same packet with Identification 0 and DF set differ by what the unknown bits
// alone make of a CRC, moved on by the bytes that follow them. Moving the difference
// back over those bytes gives the unknown bits themselves, if the packet is whole. A
// corrupt packet gives 32 bits as good as random instead, and passes only if 15 of
// them are zero; a known Identification would make that 32.
//
// In the arithmetic of the CRC, to feed a zero byte is to multiply by x^8 modulo the
// CRC's polynomial, and to take it back is to multiply by x^-8.

// hiddenBits are the bits that may differ, of the four bytes Identification, flags and
// fragment offset, first byte lowest: all of the Identification, and DF.
const hiddenBits = 0x0040ffff

// behindID counts the bytes from the Identification to the end of the UDP header.
const behindID = IPv4Len - 4 + UDPLen

const (
	crcPolynomial = 0xedb88320 // reversed: the highest bit is x^0
	crcOne        = 1 << 31    // the polynomial 1
)

// RecoverID checks the ICRC at the end of transport, which runs from BTH to ICRC,
// without knowing the Identification of the packet's IPv4 header, and returns that. Of
// a, the addresses and ports count. It reports false where the ICRC is that of no
// Identification. IPv6 has none: there it is an exact check and returns 0.
func RecoverID(a *Addressing, transport []byte) (id uint16, ok bool) {
	n := len(transport) - ICRCLen
	if n < BTHLen {
		return 0, false
	}
	known := Addressing{Src: a.Src, Dst: a.Dst, SrcPort: a.SrcPort, DstPort: a.DstPort}
	diff := ICRCBytes(&known, transport[:n]) ^ binary.LittleEndian.Uint32(transport[n:])
	if diff == 0 || !a.Src.Is4() {
		return 0, diff == 0
	}
	hidden := crcMultiply(diff, crcUndo(behindID+n))
	return uint16(hidden)<<8 | uint16(hidden)>>8, hidden&^hiddenBits == 0
}

// crcMultiply returns the product of two polynomials modulo that of the CRC.
func crcMultiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crcPolynomial&-(b&1)
	}
	return product
}

// undoWords has x^-32n at index n, for every RoCEv2 packet up to path MTU 4096: to
// take back n times four zero bytes. undoPowers has x^-8 to the power 2^n.
var undoWords, undoPowers = buildUndo()

const undoMax = (behindID + MaxHeaderLen + 4096 + 4) / 4

func buildUndo() (words [undoMax]uint32, powers [17]uint32) {
	inverse := uint32(crcOne)
	for range 8 {
		constant := inverse >> 31 // to divide by x, make x^0 vanish first
		inverse = (inverse^crcPolynomial&-constant)<<1 | constant
	}
	for i := range powers {
		powers[i] = inverse
		inverse = crcMultiply(inverse, inverse)
	}
	words[0] = crcOne
	for i := 1; i < len(words); i++ {
		words[i] = crcMultiply(words[i-1], powers[2])
	}
	return words, powers
}

// crcUndo returns the factor that takes n zero bytes back. n is less than 2^17.
func crcUndo(n int) uint32 {
	if i := n / 4; n%4 == 0 && i < len(undoWords) {
		return undoWords[i]
	}
	f := uint32(crcOne)
	for i, p := range undoPowers {
		if n>>i&1 != 0 {
			f = crcMultiply(f, p)
		}
	}
	return f
}
