package mrtable

import "softroce/internal/ib"

// A WindowType is the type of a memory window. It determines what a peer's queue pair must have in
// common with the window (IBTA 10.6.7.2).
type WindowType uint8

// Types of memory windows.
const (
	Type1  WindowType = iota + 1 // the protection domain; may be bound again at any time
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

// consumerBits is the size of the part of a window's R_Key that the consumer chooses (IBTA
// 10.6.3.3).
const consumerBits = 8

const consumerMask = 1<<consumerBits - 1

// A Window is a memory window. From Bind until it is bound again, invalidated or deallocated, it
// grants peers access to a part of a region under a key of its own.
type Window struct {
	PD *PD

	table *Table // nil after DeallocWindow
	kind  WindowType
	key   uint32
	qpn   uint32  // type 2: queue pair that bound it
	bound *Region // nil: not bound
}

// AllocWindow returns an unbound window. Errors are ErrPD, ErrWindow and ErrFull.
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

// DeallocWindow deallocates a window, bound or not. It does nothing if that was done before.
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

// RKey returns the current key of the window, or that of its last bind.
func (w *Window) RKey() uint32 { return w.key }

// Bound returns the region of the bound window, or nil.
func (w *Window) Bound() *Region { return w.bound }

// QPN returns the queue pair that has bound a type 2 window, or 0.
func (w *Window) QPN() uint32 {
	if w.bound == nil || w.kind == Type1 {
		return 0
	}
	return w.qpn
}

func (w *Window) unbind() {
	if r := w.bound; r != nil {
		r.gone.Store(true)
		r.parent.windows--
		w.bound = nil
		w.table.slots[w.key>>tagBits].region.Store(nil)
	}
}

// A Binding holds the parameters of a bind work request.
type Binding struct {
	PD     *PD       // protection domain of the queue pair
	QPN    uint32    // number of the queue pair
	RKey   uint32    // the new R_Key: its upper 24 bits identify the window
	LKey   uint32    // L_Key of the region; ignored if Length is 0
	Addr   uint64    // address of the first byte in the region
	Length uint64    // 0 unbinds a type 1 window
	Access ib.Access // any of windowAccess
}

// Bind binds a window. A type 2 window must not be bound already. AccessRemoteWrite and
// AccessRemoteAtomic require AccessLocalWrite of the region, not its remote access. A rejected bind
// changes nothing; errors are ErrKey, ErrPD, ErrWindow, ErrFlags, ErrAccess and ErrBounds.
func (t *Table) Bind(b Binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
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
		w.setConsumerKey(b.RKey)
		return nil
	}
	r, err := t.checkBind(&b)
	if err != nil {
		return err
	}
	w.unbind()
	w.setConsumerKey(b.RKey)
	w.qpn = b.QPN
	w.bind(r, &b)
	return nil
}

// setConsumerKey sets the consumer's part of the key.
func (w *Window) setConsumerKey(key uint32) { w.key = w.key&^consumerMask | key&consumerMask }

// window returns the window that a key belongs to, ignoring the consumer's part of the key.
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

// checkBind returns the region of a binding after checking it (C10-73 to C10-75).
func (t *Table) checkBind(b *Binding) (*Region, error) {
	r := t.lookup(b.LKey)
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
	case !r.contains(b.Addr, b.Length):
		return nil, ErrBounds
	}
	return r, nil
}

// bind makes w a part of r. Each bind creates a Region, so that users of the previous one find it
// invalid.
func (w *Window) bind(r *Region, b *Binding) {
	iova := b.Addr
	if b.Access&ib.AccessZeroBased != 0 {
		iova = 0
	}
	w.bound = &Region{
		PD: w.PD, IOVA: iova, Length: b.Length, Access: b.Access | r.Access&ib.AccessLocalWrite, Memory: r.Memory,
		table: w.table, key: w.key, qpn: w.qpn, process: r.process,
		window: w, parent: r, base: r.offset(b.Addr),
	}
	r.windows++
	w.table.slots[w.key>>tagBits].region.Store(w.bound)
}

// Invalidate unbinds a type 2 window, for a work request of the queue pair or a SEND from its peer.
// It does nothing to an unbound window. Errors are ErrKey; ErrWindow for the key of a region or a
// type 1 window; ErrQP; and ErrPD.
func (t *Table) Invalidate(pd *PD, qpn, rkey uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.window(rkey)
	switch {
	case w == nil && t.lookup(rkey) != nil:
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
