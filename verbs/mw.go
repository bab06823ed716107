package verbs

import (
	"context"
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
)

// MWType is the kind of a memory window: ibv_mw_type.
type MWType uint32

// Types of memory windows. A window of type 2 is of type 2B.
const (
	MWType1 MWType = MWType(ib.MWType1) // bound by QP.BindMW, any number of times; for all queue pairs of its PD
	MWType2 MWType = MWType(ib.MWType2) // bound by a work request, until it is invalidated; for the queue pair of that work request
)

// MW is a memory window: ibv_mw. It grants peers access to a part of a memory region under an R_Key
// that is not the region's.
type MW struct {
	ctx    *Context
	pd     *PD
	handle uint32
	mwType MWType
	rkey   atomic.Uint32
}

// AllocMW allocates a memory window, which grants nothing until it is bound: ibv_alloc_mw.
func (p *PD) AllocMW(ctx context.Context, t MWType) (*MW, error) {
	return created(ctx, "allocate MW", func() (*MW, error) {
		var got abi.AllocMWReply
		req := abi.AllocMWRequest{PD: p.handle, Type: uint32(t)}
		_, err := p.ctx.call(control.Request{Name: "allocate MW", Op: abi.OpAllocMW, Body: []any{req}, Reply: &got})
		if err != nil {
			return nil, err
		}
		m := &MW{ctx: p.ctx, pd: p, handle: got.Handle, mwType: t}
		m.rkey.Store(got.RKey)
		return adopted(p.ctx, m)
	})
}

// RKey returns the window's R_Key: that of the bind that was posted last.
func (m *MW) RKey() uint32 { return m.rkey.Load() }

// Type returns the window's type.
func (m *MW) Type() MWType { return m.mwType }

// PD returns the window's protection domain.
func (m *MW) PD() *PD { return m.pd }

// Close deallocates the window, bound or not.
func (m *MW) Close(ctx context.Context) error {
	return m.ctx.closeObject(ctx, m, "deallocate MW", abi.OpDeallocMW, m.handle, nil)
}

func (m *MW) abandon() {}

// IncRKey returns rkey with its low 8 bits, which belong to the program, incremented: ibv_inc_rkey.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// MWBindInfo is what a bind grants: ibv_mw_bind_info.
type MWBindInfo struct {
	MR     *MR    // with AccessMWBind, and AccessLocalWrite for a window that peers write to
	Addr   uint64 // of the first byte, in the region
	Length uint64 // 0 unbinds (type 1)
	Access Access // AccessRemote…, AccessZeroBased, AccessFlushGlobal
}

// BindMW is the part of a work request that binds a window.
type BindMW struct {
	MW   *MW
	RKey uint32 // its new R_Key, of which the low 8 bits are used: see IncRKey
	MWBindInfo
}

func (b *BindMW) complete() bool { return b != nil && b.MW != nil && (b.MR != nil || b.Length == 0) }

func (b *BindMW) store(w *abi.BindWQE) {
	rkey := b.MW.RKey()&^0xff | b.RKey&0xff
	b.MW.rkey.Store(rkey)
	w.RKey, w.Addr, w.Length, w.LKey, w.Access = rkey, b.Addr, b.Length, 0, uint32(b.Access)
	if b.MR != nil {
		w.LKey = b.MR.lkey
	}
}

// MWBind is what QP.BindMW posts: ibv_mw_bind.
type MWBind struct {
	WRID      uint64
	SendFlags SendFlags
	MWBindInfo
}

// BindMW posts a work request that binds a window of type 1, and gives the window a new R_Key:
// ibv_bind_mw. Peers can use the R_Key when the work request has completed. Errors are those of
// PostSend, and EINVAL for a window of type 2.
func (q *QP) BindMW(m *MW, b MWBind) error {
	if m.mwType != MWType1 {
		return &Error{Op: "bind MW", Errno: syscall.EINVAL, Text: "a window of type 2 is bound by PostSend"}
	}
	return q.PostSend(SendWR{WRID: b.WRID, Opcode: WRBindMW, SendFlags: b.SendFlags,
		BindMW: &BindMW{MW: m, RKey: IncRKey(m.RKey()), MWBindInfo: b.MWBindInfo}})
}

// FlushPlacement is the guarantee that WRFlush requests: ibv_placement_type.
type FlushPlacement uint8

// Placements. Softroce has no persistent memory.
const (
	FlushGlobal     FlushPlacement = FlushPlacement(ib.FlushGlobal) // visible to every processor and device of the peer
	FlushPersistent FlushPlacement = FlushPlacement(ib.FlushPersistent)
)

// FlushSelectivity is the range of bytes that WRFlush covers: ibv_selectivity_level.
type FlushSelectivity uint8

// Values of FlushSelectivity.
const (
	FlushRange  FlushSelectivity = FlushSelectivity(ib.FlushRange) // FlushLength bytes from RemoteAddr on
	FlushRegion FlushSelectivity = FlushSelectivity(ib.FlushMR)    // the whole region of RKey
)
