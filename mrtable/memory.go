package mrtable

import "softroce/internal/ib"

// Memory is a run of bytes that a client shares with the NIC. Offsets count from its first
// byte.
type Memory interface {
	// Len is the number of bytes.
	Len() uint64
	// View returns n bytes in place. It is nil where the memory can only be copied, and
	// where the range is not inside; for n == 0 it is empty, not nil.
	View(off uint64, n int) []byte
	// Close gives the memory back; views must not be used any more. A table calls it
	// for the regions that it holds.
	Close() error
}

// reachable says whether a region with rights a can be made of mem, and what mem is if
// it is the memory of another process.
func reachable(mem Memory, a ib.Access) (*processMemory, error) {
	switch m := mem.(type) {
	case nil:
		return nil, ErrNotMemory
	case *processMemory:
		if a&ib.AccessLocalWrite != 0 && m.mapping != nil && !m.mapping.writable {
			return nil, ErrAccess
		}
		return m, nil
	case *mapped:
		if a&ib.AccessLocalWrite != 0 && !m.writable {
			return nil, ErrAccess
		}
	}
	if mem.View(0, 0) == nil {
		return nil, ErrNotMemory
	}
	return nil, nil
}

// view is View for memory that lies in b.
func view(b []byte, off uint64, n int) []byte {
	if b == nil || n < 0 || off > uint64(len(b)) || uint64(n) > uint64(len(b))-off {
		return nil
	}
	end := int(off) + n
	return b[off:end:end]
}

type heap struct{ data []byte }

// HeapMemory is memory of this program itself, for simulations and tests. Atomic
// operations need b to begin at a multiple of 8 as seen from the region's IOVA.
func HeapMemory(b []byte) Memory {
	if b == nil {
		b = []byte{}
	}
	return &heap{b}
}

func (h *heap) Len() uint64                   { return uint64(len(h.data)) }
func (h *heap) View(off uint64, n int) []byte { return view(h.data, off, n) }
func (h *heap) Close() error                  { return nil }
