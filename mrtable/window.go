package mrtable

import "softroce/internal/ib"

// A WindowType is the kind of a memory window: what a peer's queue pair must have in common
// with it (IBTA 10.6.7.2).
type WindowType uint8

// Types of memory windows.
const (
	Type1  WindowType = iota + 1 // the protection domain; bound anew at will
	Type2A                       // the queue pair that bound it
	Type2B                       // that queue pair and the protection domain
)

func (k WindowType) String() string {
	switch k {
	case Type1:
		return "1"
	case Type2A:
		return "2A"
	case Type2B:
		return "2B"
	}
	return "unknown"
}

// consumerBits is the part of a window's R_Key that whoever binds it chooses (IBTA 10.6.3.3).
const consumerBits = 8

const consumerMask = 1<<consumerBits - 1

// A Window is a memory window: rights to a part of a region that peers have under a key of its
// own, from Bind until it is bound elsewhere, invalidated or deallocated.
type Window struct {
	PD *PD

	table *Table // nil after DeallocWindow
	kind  WindowType
	key   uint32
	qpn   uint32  // type 2: bound by
	bound *Region // nil: not bound
}

// AllocWindow returns a window that is not bound. Errors are ErrPD and ErrFull.
func (t *Table) AllocWindow(pd *PD, k WindowType) (*Window, error) {
	if pd == nil || pd.table != t {
		return nil, ErrPD
	}
	if k < Type1 || k > Type2B {
		return nil, ErrWindow
	}
	index, ok := t.takeSlot()
	if !ok {
		return nil, ErrFull
	}
	w := &Window{PD: pd, table: t, kind: k, key: index<<tagBits | t.slots[index].tag}
	t.slots[index].window = w
	pd.uses++
	return w, nil
}

// DeallocWindow ends a window, bound or not. It does nothing to one that has ended.
func (t *Table) DeallocWindow(w *Window) {
	if w == nil || w.table != t {
		return
	}
	w.unbind()
	t.freeSlot(w.key >> tagBits)
	w.PD.uses--
	w.table = nil
}

// Type returns the window's type.
func (w *Window) Type() WindowType { return w.kind }

// RKey returns the key that the window has, or had when it was bound last.
func (w *Window) RKey() uint32 { return w.key }

// Bound returns what the window grants, nil where it is not bound.
func (w *Window) Bound() *Region { return w.bound }

// QPN returns the queue pair that has bound a window of type 2, 0 for none.
func (w *Window) QPN() uint32 {
	if w.bound == nil || w.kind == Type1 {
		return 0
	}
	return w.qpn
}

func (w *Window) unbind() {
	if r := w.bound; r != nil {
		r.live = false
		r.parent.windows--
		w.bound = nil
		w.table.slots[w.key>>tagBits].region = nil
	}
}

// A Binding is what a bind work request asks for.
type Binding struct {
	PD     *PD       // of the queue pair that the work request was posted to
	QPN    uint32    // its number
	RKey   uint32    // the window, by all but the low 8 bits; those are its new ones
	LKey   uint32    // the region; of no account for Length 0
	Addr   uint64    // of the first byte, as the region has it
	Length uint64    // 0 only unbinds a window of type 1
	Access ib.Access // RemoteWrite, RemoteRead, RemoteAtomic, FlushGlobal, ZeroBased
}

// Bind binds a window. A window of type 2 must not be bound already. RemoteWrite and
// RemoteAtomic need LocalWrite of the region, not the region's own remote rights. A refused bind
// changes nothing; its errors are ErrKey, ErrPD, ErrWindow, ErrFlags, ErrAccess and ErrBounds.
func (t *Table) Bind(b Binding) error {
	w := t.window(b.RKey)
	if w == nil {
		return ErrKey
	}
	if w.PD != b.PD {
		return ErrPD
	}
	if w.kind != Type1 && (w.bound != nil || b.Length == 0) {
		return ErrWindow
	}
	if b.Access&^windowAccess != 0 {
		return ErrFlags
	}
	if b.Length == 0 {
		w.unbind()
		w.name(b.RKey)
		return nil
	}
	r, err := t.bindable(&b)
	if err != nil {
		return err
	}
	w.unbind()
	w.name(b.RKey)
	w.qpn = b.QPN
	w.bind(r, &b)
	return nil
}

// name gives w the consumer's part of its key.
func (w *Window) name(key uint32) { w.key = w.key&^consumerMask | key&consumerMask }

// window finds the window that a key belongs to, whatever the consumer's part of it.
func (t *Table) window(key uint32) *Window {
	index := key >> tagBits
	if index >= uint32(len(t.slots)) {
		return nil
	}
	if w := t.slots[index].window; w != nil && w.key>>consumerBits == key>>consumerBits {
		return w
	}
	return nil
}

// bindable finds the region of a binding and checks it against what is asked for (C10-73 to C10-75).
func (t *Table) bindable(b *Binding) (*Region, error) {
	r := t.named(b.LKey)
	switch {
	case r == nil || r.window != nil:
		return nil, ErrKey
	case r.PD != b.PD:
		return nil, ErrPD
	case r.Access&ib.AccessMWBind == 0 || r.Access&ib.AccessZeroBased != 0:
		return nil, ErrAccess
	case b.Access&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && r.Access&ib.AccessLocalWrite == 0:
		return nil, ErrAccess
	case b.Access&ib.AccessFlushGlobal != 0 && r.Access&ib.AccessFlushGlobal == 0:
		return nil, ErrAccess
	case !r.holds(b.Addr, b.Length):
		return nil, ErrBounds
	}
	return r, nil
}

// bind makes w a part of r. Each bind has a Region of its own: who still holds the one
// before must find it dead.
func (w *Window) bind(r *Region, b *Binding) {
	iova := b.Addr
	if b.Access&ib.AccessZeroBased != 0 {
		iova = 0
	}
	w.bound = &Region{
		PD: w.PD, IOVA: iova, Length: b.Length, Access: b.Access | r.Access&ib.AccessLocalWrite, Memory: r.Memory,
		table: w.table, key: w.key, live: true, process: r.process,
		window: w, parent: r, base: r.offset(b.Addr),
	}
	r.windows++
	w.table.slots[w.key>>tagBits].region = w.bound
}

// Invalidate takes from a window of type 2 what it grants, for a queue pair's work request or
// for the SEND of its peer. One that is not bound stays so. Errors are ErrKey; ErrWindow where the key is
// that of a region or of a window of type 1; ErrQP and ErrPD.
func (t *Table) Invalidate(pd *PD, qpn, rkey uint32) error {
	w := t.window(rkey)
	switch {
	case w == nil && t.named(rkey) != nil:
		return ErrWindow
	case w == nil || w.key != rkey:
		return ErrKey
	case w.kind == Type1:
		return ErrWindow
	case w.bound != nil && w.qpn != qpn:
		return ErrQP
	case w.PD != pd:
		return ErrPD
	}
	w.unbind()
	return nil
}
