package mrtable

import "strings"

// Access is what a region may be used for: the bits of enum ibv_access_flags. Local
// reading is always granted.
type Access uint32

// Bits of Access.
const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	MWBind          Access = 1 << 4
	ZeroBased       Access = 1 << 5
	OnDemand        Access = 1 << 6
	HugeTLB         Access = 1 << 7
	FlushGlobal     Access = 1 << 8 // FLUSH for global visibility
	FlushPersistent Access = 1 << 9 // FLUSH for persistence
	RelaxedOrdering Access = 1 << 20

	// optional is IBV_ACCESS_OPTIONAL_RANGE: flags in it are hints that a device which
	// does not know them ignores.
	optional Access = 0x3ff << 20

	known = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind | ZeroBased | OnDemand | HugeTLB | FlushGlobal | optional

	// windowAccess is what a memory window can grant.
	windowAccess = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | ZeroBased
)

// check holds the rules of ibv_reg_mr: no unknown flag, and no remote right to change
// memory without the local one. FlushPersistent is unknown: no memory here outlives the machine.
func (a Access) check() error {
	if a&^known != 0 {
		return ErrFlags
	}
	if a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0 {
		return ErrFlags
	}
	return nil
}

// String lists the flags, as "local_write|remote_read".
func (a Access) String() string {
	if a == 0 {
		return "local_read"
	}
	var names []string
	for _, f := range []struct {
		bit  Access
		name string
	}{
		{LocalWrite, "local_write"},
		{RemoteWrite, "remote_write"},
		{RemoteRead, "remote_read"},
		{RemoteAtomic, "remote_atomic"},
		{MWBind, "mw_bind"},
		{ZeroBased, "zero_based"},
		{OnDemand, "on_demand"},
		{HugeTLB, "hugetlb"},
		{FlushGlobal, "flush_global"},
		{FlushPersistent, "flush_persistent"},
		{RelaxedOrdering, "relaxed_ordering"},
	} {
		if a&f.bit != 0 {
			names = append(names, f.name)
			a &^= f.bit
		}
	}
	if a != 0 {
		names = append(names, "other")
	}
	return strings.Join(names, "|")
}
