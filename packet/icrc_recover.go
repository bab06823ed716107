package packet

import "encoding/binary"

// A UDP socket hides the IPv4 Identification and the DF bit of received packets, which the ICRC
// covers. Since a CRC is linear, the ICRC of the packet as sent and that of the packet with
// Identification 0 and DF set differ by the CRC of the unknown bits, shifted by the bytes that
// follow them. Shifting the difference back over those bytes yields the unknown bits, if the packet
// is intact. A corrupt packet yields 32 random bits instead and passes only if 15 of them are zero;
// with a known Identification it would have to match all 32.

// hiddenBits are the unknown bits in the four bytes of Identification, flags and fragment offset,
// first byte lowest: all of the Identification, and DF.
const hiddenBits = 0x0040ffff

// RecoverID checks the ICRC of a packet whose IPv4 Identification is unknown, and returns that
// Identification. transport contains the bytes from BTH to ICRC; of a, it uses addresses and ports,
// and the Identification as a guess, which makes no difference except that a right one is found
// sooner. It returns false if no Identification yields the ICRC. For other packets than those of
// IPv4, which have no Identification, the check is exact and the result 0.
func RecoverID(a *Addressing, transport []byte) (id uint16, ok bool) {
	n := len(transport) - ICRCLen
	if n < BTHLen {
		return 0, false
	}
	known := Addressing{Network: a.Network, LRH: a.LRH, Src: a.Src, Dst: a.Dst, SrcPort: a.SrcPort, DstPort: a.DstPort}
	return known.ICRCBase(n).RecoverID(a.ID, transport)
}

// RecoverID is the function RecoverID for the packets of an ICRCBase. transport must have room for
// BTH and ICRC.
func (s ICRCBase) RecoverID(guess uint16, transport []byte) (id uint16, ok bool) {
	n := len(transport) - ICRCLen
	if !s.is4 {
		guess = 0
	}
	diff := s.Bytes(guess, transport[:n]) ^ binary.LittleEndian.Uint32(transport[n:])
	if diff == 0 || !s.is4 {
		return guess, diff == 0
	}
	hidden := crcMultiply(diff, crcUndo(afterID+n))
	return guess ^ swap(uint16(hidden)), hidden&^hiddenBits == 0
}

// undoWords[n] is x^-32n, which removes n groups of four zero bytes, for all RoCEv2 packets up to
// path MTU 4096. undoPowers[n] is x^-8 to the power 2^n.
var undoWords, undoPowers = buildUndo()

const undoMax = (afterID + MaxHeaderLen + 4096 + 4) / 4

func buildUndo() (words [undoMax]uint32, powers [17]uint32) {
	inverse := uint32(crcOne)
	for range 8 {
		constant := inverse >> 31 // to divide by x, cancel x^0 first
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

// crcUndo returns the factor that removes n zero bytes, n < 2^17.
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
