package mrtable

import "softroce/internal/ib"

// Memory is a range of bytes that a client shares with the NIC. Offsets start at its first byte.
type Memory interface {
	// Len returns the number of bytes.
	Len() uint64
	// View returns n bytes in place. It returns nil if the memory can only be copied or the range
	// is out of bounds; for n == 0 it returns an empty slice, not nil.
	View(off uint64, n int) []byte
	// Close releases the memory, after which views must not be used. A table calls it for its
	// regions.
	Close() error
}

// checkMemory reports whether mem supports a region with access a. It returns the processMemory if
// mem can only be copied.
func checkMemory(mem Memory, a ib.Access) (*processMemory, error) {
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

// view implements View for memory in b.
func view(b []byte, off uint64, n int) []byte {
	if b == nil || n < 0 || off > uint64(len(b)) || uint64(n) > uint64(len(b))-off {
		return nil
	}
	end := int(off) + n
	return b[off:end:end]
}

type heap struct{ data []byte }

// HeapMemory returns memory of this program, for simulations and tests. For atomics, b must be
// aligned to 8 bytes in the same way as the region's IOVA.
func HeapMemory(b []byte) Memory {
	if b == nil {
		b = []byte{}
	}
	return &heap{b}
}

func (h *heap) Len() uint64                   { return uint64(len(h.data)) }
func (h *heap) View(off uint64, n int) []byte { return view(h.data, off, n) }
func (h *heap) Close() error                  { return nil }
