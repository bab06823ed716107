//go:build !race

package release

// An x86 processor makes stores visible in their order, those of a string instruction included,
// and after the loads before them. An atomic store is a locked instruction, which waits until it
// and all stores before it are in the cache. Go does not promise the order of plain stores, but
// its compiler moves neither loads nor stores across a store that may be of the same memory. The
// race detector only knows the order of atomic operations.

// Store32 stores v at p, which is aligned, after everything that was stored or loaded before.
func Store32(p *uint32, v uint32) { *p = v }

// Store64 stores v at p, which is aligned, after everything that was stored or loaded before.
func Store64(p *uint64, v uint64) { *p = v }
