package packet

import "golang.org/x/sys/cpu"

// A processor with VPCLMULQDQ multiplies two pairs of polynomials at a time, twice as many as
// hash/crc32. It folds 128 bytes onto the next 128: what lies d bits before another place counts
// there as its product with x^d, modulo the polynomial of the CRC. At the end the bytes are folded
// to 16, and those reduced to the register.

// foldMin is the fewest bytes that fold takes.
const foldMin = 128

// foldConstants are the factors of fold. Those of a distance are for the first and the second eight
// bytes of sixteen.
type foldConstants struct {
	by1024, by768, by512, by256, by128 [2]uint64

	by64 [2]uint64 // for four bytes; the mask of four bytes
	last [2]uint64 // inverse of the polynomial modulo x^32, with which the reduction ends; the polynomial
}

var (
	folding = buildFolding()
	canFold = cpu.X86.HasAVX2 && hasVPCLMULQDQ()
)

// factor returns x^n in the form in which the product with eight bytes, which is bit-reversed, is
// that with x^(n+32).
func factor(n int) uint64 { return uint64(crcPower(n)) << 1 }

func buildFolding() foldConstants {
	by := func(d int) [2]uint64 { return [2]uint64{factor(d + 32), factor(d - 32)} }
	const polynomial = crcPolynomial<<1 | 1
	inverse := uint64(0)
	for i, rest := 0, uint64(1); i < 32; i++ { // divide 1 by the polynomial, lowest bit first
		if rest>>i&1 != 0 {
			inverse |= 1 << i
			rest ^= polynomial << i
		}
	}
	return foldConstants{by1024: by(1024), by768: by(768), by512: by(512), by256: by(256), by128: by(128),
		by64: [2]uint64{factor(64), 0xffffffff}, last: [2]uint64{inverse, polynomial}}
}

// fold adds the n bytes at p to c. n is at least foldMin and a multiple of 16.
//
//go:noescape
func fold(c uint32, p *byte, n int, k *foldConstants) uint32

func hasVPCLMULQDQ() bool
