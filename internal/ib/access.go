package ib

import "strings"

// Access is what a memory region or window grants, or what a queue pair lets its peer request: enum
// ibv_access_flags. Local read is always granted.
type Access uint32

// Bits of Access.
const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessMWBind          Access = 1 << 4 // memory windows may be bound to the region
	AccessZeroBased       Access = 1 << 5 // peers address the first byte as 0
	AccessOnDemand        Access = 1 << 6
	AccessHugeTLB         Access = 1 << 7
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	AccessRelaxedOrdering Access = 1 << 20

	// AccessOptional is IBV_ACCESS_OPTIONAL_RANGE: hints that a device may ignore.
	AccessOptional Access = 0x3ff << 20
)

var accessNames = [...]struct {
	bit  Access
	name string
}{
	{AccessLocalWrite, "local_write"},
	{AccessRemoteWrite, "remote_write"},
	{AccessRemoteRead, "remote_read"},
	{AccessRemoteAtomic, "remote_atomic"},
	{AccessMWBind, "mw_bind"},
	{AccessZeroBased, "zero_based"},
	{AccessOnDemand, "on_demand"},
	{AccessHugeTLB, "hugetlb"},
	{AccessFlushGlobal, "flush_global"},
	{AccessFlushPersistent, "flush_persistent"},
	{AccessRelaxedOrdering, "relaxed_ordering"},
}

// String lists the flags, as "local_write|remote_read". Bits without a name print as "other".
func (a Access) String() string {
	if a == 0 {
		return "local_read"
	}
	var names []string
	for _, f := range accessNames {
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
