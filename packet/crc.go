package packet

import (
	"encoding/binary"
	"hash/crc32"
)

// The functions of this file work on the register of a CRC-32 of IEEE 802.3: the CRC, inverted.

// crcTables has, for each position in a group of eight bytes, the contribution of the byte there to
// the register ("slicing by eight"). crcTables[0] is the plain byte table.
var crcTables = buildCRCTables()

func buildCRCTables() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range 256 {
		for k := 1; k < 8; k++ {
			t[k][i] = skipByte(&t[0], t[k-1][i])
		}
	}
	return t
}

// skipByte adds a zero byte to c.
func skipByte(t *[256]uint32, c uint32) uint32 { return t[c&0xff] ^ c>>8 }

// update8 adds eight bytes, lowest first.
func update8(c uint32, w uint64) uint32 {
	w ^= uint64(c)
	t := &crcTables
	return t[7][w&0xff] ^ t[6][w>>8&0xff] ^ t[5][w>>16&0xff] ^ t[4][w>>24&0xff] ^
		t[3][w>>32&0xff] ^ t[2][w>>40&0xff] ^ t[1][w>>48&0xff] ^ t[0][w>>56]
}

// update4 adds four bytes.
func update4(c, w uint32) uint32 {
	w ^= c
	t := &crcTables
	return t[3][w&0xff] ^ t[2][w>>8&0xff] ^ t[1][w>>16&0xff] ^ t[0][w>>24]
}

// update1 adds one byte.
func update1(c uint32, b byte) uint32 { return skipByte(&crcTables[0], c^uint32(b)) }

// updateShort adds a few bytes.
func updateShort(c uint32, b []byte) uint32 {
	le := binary.LittleEndian
	for ; len(b) >= 8; b = b[8:] {
		c = update8(c, le.Uint64(b))
	}
	if len(b) >= 4 {
		c, b = update4(c, le.Uint32(b)), b[4:]
	}
	for _, x := range b {
		c = update1(c, x)
	}
	return c
}

// update adds any number of bytes.
func update(c uint32, b []byte) uint32 {
	if n := len(b) &^ 15; n >= foldMin && canFold {
		c, b = fold(c, &b[0], n, &folding), b[n:]
	}
	if len(b) < crcShort {
		return updateShort(c, b)
	}
	return ^crc32.Update(^c, crc32.IEEETable, b)
}

// crcShort is the length below which hash/crc32 does not use the processor's instructions.
const crcShort = 64

// Arithmetic on polynomials modulo that of the CRC: appending a zero byte multiplies by x^8.
const (
	crcPolynomial = 0xedb88320 // bit-reversed: the highest bit is x^0
	crcOne        = 1 << 31    // the constant polynomial 1
)

// crcMultiply returns the product of two polynomials.
func crcMultiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crcPolynomial&-(b&1)
	}
	return product
}

// crcPower returns x^n.
func crcPower(n int) uint32 {
	p := uint32(crcOne)
	for range n {
		p = p>>1 ^ crcPolynomial&-(p&1)
	}
	return p
}
