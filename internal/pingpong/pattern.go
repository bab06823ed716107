package pingpong

import "encoding/binary"

// The stock client fills its message with stockByte. With -c it puts 0 at the start of
// each page, and there alone the stock server looks. Our client does that too, and fills
// the rest with bytes that differ from message to message and tell the seed that they were
// made from, so that our server can check every byte of either.
const (
	stockByte = 0x7b
	pageSize  = 4096

	// stockSeed is the seed of the stock message: what such a message itself tells.
	stockSeed = stockByte * 0x01010101

	// seedAt is where four bytes of seed stand, after the zero of the first page.
	seedAt = 1
)

// seedFor returns the seed of message i. Messages too short to tell one are the stock one.
func seedFor(i uint32, size int) uint32 {
	if size < seedAt+4 {
		return stockSeed
	}
	return i
}

// seedOf returns the seed that a message tells.
func seedOf(b []byte) uint32 {
	if len(b) < seedAt+4 {
		return stockSeed
	}
	return binary.LittleEndian.Uint32(b[seedAt:])
}

// fill writes the message that seed makes.
func fill(b []byte, seed uint32) {
	x := seed
	for i := range b {
		x = x*1664525 + 1013904223 // a linear congruence: Numerical Recipes, 7.1
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
