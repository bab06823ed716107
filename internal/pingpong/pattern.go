package pingpong

import "encoding/binary"

// The stock client fills its message with stockByte. With -c it sets the first byte of each page to
// 0, and the stock server checks only those. Our client does the same and fills the rest with bytes
// that differ from message to message and are generated from a seed in the message, so that our
// server can verify every byte of a message from either client.
const (
	stockByte = 0x7b
	pageSize  = 4096

	// stockSeed is the seed that the stock message contains.
	stockSeed = stockByte * 0x01010101

	// seedAt is the offset of the four bytes of seed, after the zero of the first page.
	seedAt = 1
)

// seedFor returns the seed of message i. Messages too short to contain one equal the stock message.
func seedFor(i uint32, size int) uint32 {
	if size < seedAt+4 {
		return stockSeed
	}
	return i
}

// seedOf returns the seed that a message contains.
func seedOf(b []byte) uint32 {
	if len(b) < seedAt+4 {
		return stockSeed
	}
	return binary.LittleEndian.Uint32(b[seedAt:])
}

// fill generates the message of a seed.
func fill(b []byte, seed uint32) {
	x := seed
	for i := range b {
		x = x*1664525 + 1013904223 // a linear congruential generator: Numerical Recipes, 7.1
		b[i] = byte(x >> 24)
		if seed == stockSeed {
			b[i] = stockByte
		}
	}
	if len(b) >= seedAt+4 {
		binary.LittleEndian.PutUint32(b[seedAt:], seed)
	}
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}
