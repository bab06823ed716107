package mrtable

import (
	"math/bits"

	"softroce/internal/ib"
)

// Windows in the model: a bound window is a modelRegion whose bytes belong to its parent.

// window picks a window, or allocates one.
func (w *model) window(in *input) *Window {
	if k := int(in.byte() % 8); k < len(w.windows) {
		return w.windows[k]
	}
	m, err := w.table.AllocWindow(w.pds[int(in.byte())%2], Type1+WindowType(in.byte()%3))
	if err != nil {
		w.t.Fatal(err)
	}
	w.windows = append(w.windows, m)
	return m
}

// regionOf returns the live modelRegion of a window, or nil.
func (w *model) regionOf(m *Window) *modelRegion {
	for _, c := range w.regions {
		if c.live && c.window == m {
			return c
		}
	}
	return nil
}

func (w *model) bind(in *input) {
	m := w.window(in)
	c := w.pickRegion(in)
	if c == nil {
		return
	}
	addr, n := w.pickRange(in, c)
	b := Binding{PD: w.pds[int(in.byte())%2], QPN: uint32(in.byte() % 2), RKey: m.RKey() ^ uint32(in.byte()),
		LKey: c.LKey(), Addr: addr, Length: n,
		Access: []ib.Access{0, ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic | ib.AccessZeroBased, ib.AccessRemoteWrite | ib.AccessRemoteRead, ib.AccessLocalWrite}[in.byte()%6]}
	old := w.regionOf(m)
	err := w.table.Bind(b)
	want := w.bindError(m, c, old, &b)
	if err != want {
		w.t.Fatalf("bind %+v: %v, want %v", b, err, want)
	}
	if err != nil {
		return
	}
	if old != nil {
		old.live = false
	}
	if b.Length > 0 {
		w.regions = append(w.regions, &modelRegion{Region: m.Bound(), off: c.off + (addr - c.IOVA), length: n, live: true, parent: c})
	}
}

// bindError returns the error that a bind must return.
func (w *model) bindError(m *Window, c, old *modelRegion, b *Binding) error {
	end, carry := bits.Add64(b.Addr, b.Length, 0)
	switch {
	case m.PD != b.PD:
		return ErrPD
	case m.kind != Type1 && (old != nil || b.Length == 0):
		return ErrWindow
	case b.Access&ib.AccessLocalWrite != 0:
		return ErrFlags
	case b.Length == 0:
		return nil
	case !c.live || c.parent != nil:
		return ErrKey
	case c.PD != b.PD:
		return ErrPD
	case c.Access&ib.AccessMWBind == 0, b.Access&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && c.Access&ib.AccessLocalWrite == 0:
		return ErrAccess
	case !c.contains(b.Addr, b.Length) || carry != 0 && end != 0:
		return ErrBounds
	}
	return nil
}

func (w *model) invalidate(in *input) {
	m := w.window(in)
	pd, qpn, key := w.pds[int(in.byte())%2], uint32(in.byte()%2), m.RKey()
	if in.byte()%8 == 0 {
		key ^= 1
	}
	old := w.regionOf(m)
	var want error
	switch {
	case key != m.RKey():
		want = ErrKey
	case m.kind == Type1:
		want = ErrWindow
	case old != nil && m.qpn != qpn:
		want = ErrQP
	case m.PD != pd:
		want = ErrPD
	}
	if err := w.table.Invalidate(pd, qpn, key); err != want {
		w.t.Fatalf("invalidate: %v, want %v", err, want)
	}
	if want == nil && old != nil {
		old.live = false
	}
}

func (w *model) dealloc(in *input) {
	if len(w.windows) == 0 {
		return
	}
	k := int(in.byte()) % len(w.windows)
	m := w.windows[k]
	if c := w.regionOf(m); c != nil {
		c.live = false
	}
	w.table.DeallocWindow(m)
	w.windows[k] = w.windows[len(w.windows)-1]
	w.windows = w.windows[:len(w.windows)-1]
}
