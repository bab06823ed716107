package abi

import (
	"math/bits"
	"slices"
	"unsafe"
)

// In returns the T at the start of a slot, to be written there field by field. To build it
// elsewhere and copy it takes longer: a load that is wider than recent stores cannot take their
// values from the store buffer, and waits until these and all earlier stores have reached the
// cache. Slots are aligned to 8 bytes: packages nic and verbs check their rings.
func In[T SendWQE | RecvWQE | CQE | AsyncEvent](slot []byte) *T {
	_ = slot[unsafe.Sizeof(*new(T))-1]
	return (*T)(unsafe.Pointer(&slot[0]))
}

// Parse reads w from the start of a slot.
func (w *SendWQE) Parse(slot []byte) { *w.bytes() = *(*[SendWQESize]byte)(slot) }

func (w *SendWQE) bytes() *[SendWQESize]byte { return (*[SendWQESize]byte)(unsafe.Pointer(w)) }

// Bind returns w in the layout of a bind. It is the same memory.
func (w *SendWQE) Bind() *BindWQE { return (*BindWQE)(unsafe.Pointer(w)) }

// Flush returns w in the layout of a FLUSH. It is the same memory.
func (w *SendWQE) Flush() *FlushWQE { return (*FlushWQE)(unsafe.Pointer(w)) }

// Immediate returns the immediate data as a number.
func (w *SendWQE) Immediate() uint32 { return bits.ReverseBytes32(w.Imm) }

// SetImmediate sets the immediate data to a number.
func (w *SendWQE) SetImmediate(v uint32) { w.Imm = bits.ReverseBytes32(v) }

// Parse reads w from the start of a slot.
func (w *RecvWQE) Parse(slot []byte) { *w.bytes() = *(*[RecvWQESize]byte)(slot) }

func (w *RecvWQE) bytes() *[RecvWQESize]byte { return (*[RecvWQESize]byte)(unsafe.Pointer(w)) }

// Parse reads c from a slot.
func (c *CQE) Parse(slot []byte) { *c.bytes() = *(*[CQESize]byte)(slot) }

func (c *CQE) bytes() *[CQESize]byte { return (*[CQESize]byte)(unsafe.Pointer(c)) }

// Immediate returns the immediate data as a number.
func (c *CQE) Immediate() uint32 { return bits.ReverseBytes32(c.Imm) }

// SetImmediate sets the immediate data to a number.
func (c *CQE) SetImmediate(v uint32) { c.Imm = bits.ReverseBytes32(v) }

// Parse reads e from a slot.
func (e *AsyncEvent) Parse(slot []byte) { *e.bytes() = *(*[AsyncEventSize]byte)(slot) }

func (e *AsyncEvent) bytes() *[AsyncEventSize]byte { return (*[AsyncEventSize]byte)(unsafe.Pointer(e)) }

// sge is any struct with the fields of SGE, such as those of transport and verbs.
type sge interface {
	~struct {
		Addr   uint64
		Length uint32
		LKey   uint32
	}
}

// PutSGEs writes the elements of list one after the other.
func PutSGEs[T sge](b []byte, list []T) { copy(b[:len(list)*SGESize:len(b)], sgeBytes(list)) }

// AppendSGEs appends the first n elements in b to list.
func AppendSGEs[T sge](list []T, b []byte, n int) []T {
	l := len(list)
	list = slices.Grow(list, n)[:l+n]
	copy(sgeBytes(list[l:]), b[:n*SGESize:len(b)])
	return list
}

// sgeBytes returns the memory of list.
func sgeBytes[T sge](list []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*SGESize)
}

// PutInline writes data behind a SendWQE with SendInline, whose NumSGE it returns.
func PutInline(slot, data []byte) uint32 { return uint32(copy(slot[SendWQESize:], data)) }
