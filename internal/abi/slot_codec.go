package abi

import (
	"math/bits"
	"unsafe"
)

// Put writes w to the start of a slot.
func (w *SendWQE) Put(slot []byte) { *(*[SendWQESize]byte)(slot) = *w.bytes() }

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

// Put writes w to the start of a slot.
func (w *RecvWQE) Put(slot []byte) { *(*[RecvWQESize]byte)(slot) = *w.bytes() }

// Parse reads w from the start of a slot.
func (w *RecvWQE) Parse(slot []byte) { *w.bytes() = *(*[RecvWQESize]byte)(slot) }

func (w *RecvWQE) bytes() *[RecvWQESize]byte { return (*[RecvWQESize]byte)(unsafe.Pointer(w)) }

// Put writes c to a slot.
func (c *CQE) Put(slot []byte) { *(*[CQESize]byte)(slot) = *c.bytes() }

// Parse reads c from a slot.
func (c *CQE) Parse(slot []byte) { *c.bytes() = *(*[CQESize]byte)(slot) }

func (c *CQE) bytes() *[CQESize]byte { return (*[CQESize]byte)(unsafe.Pointer(c)) }

// Immediate returns the immediate data as a number.
func (c *CQE) Immediate() uint32 { return bits.ReverseBytes32(c.Imm) }

// SetImmediate sets the immediate data to a number.
func (c *CQE) SetImmediate(v uint32) { c.Imm = bits.ReverseBytes32(v) }

// Put writes e to a slot.
func (e *AsyncEvent) Put(slot []byte) { *(*[AsyncEventSize]byte)(slot) = *e.bytes() }

// Parse reads e from a slot.
func (e *AsyncEvent) Parse(slot []byte) { *e.bytes() = *(*[AsyncEventSize]byte)(slot) }

func (e *AsyncEvent) bytes() *[AsyncEventSize]byte { return (*[AsyncEventSize]byte)(unsafe.Pointer(e)) }

// Put writes g to the start of b.
func (g *SGE) Put(b []byte) { *(*[SGESize]byte)(b) = *g.bytes() }

// Parse reads g from the start of b.
func (g *SGE) Parse(b []byte) { *g.bytes() = *(*[SGESize]byte)(b) }

func (g *SGE) bytes() *[SGESize]byte { return (*[SGESize]byte)(unsafe.Pointer(g)) }

// sge is any struct with the fields of SGE, such as those of transport and verbs.
type sge interface {
	~struct {
		Addr   uint64
		Length uint32
		LKey   uint32
	}
}

// PutSGEs writes the elements of list one after the other.
func PutSGEs[T sge](b []byte, list []T) {
	for i := range list {
		g := SGE(list[i])
		g.Put(b[i*SGESize:])
	}
}

// AppendSGEs appends the first n elements in b to list.
func AppendSGEs[T sge](list []T, b []byte, n int) []T {
	var g SGE
	for i := range n {
		g.Parse(b[i*SGESize:])
		list = append(list, T(g))
	}
	return list
}

// PutInline writes data behind a SendWQE with SendInline, whose NumSGE it returns.
func PutInline(slot, data []byte) uint32 { return uint32(copy(slot[SendWQESize:], data)) }
