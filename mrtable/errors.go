package mrtable

import "errors"

// Why an access was refused. Table.Local and Table.Remote return these as they are.
var (
	ErrKey    = errors.New("no memory region or window has this key")
	ErrQP     = errors.New("memory window is bound to another queue pair")
	ErrPD     = errors.New("memory region belongs to another protection domain")
	ErrAccess = errors.New("memory region does not grant this access")
	ErrBounds = errors.New("range is not inside the memory region")
)

// Why a registration, a bind, or the release of a domain or a region, failed.
var (
	ErrFlags     = errors.New("access flags are unknown or contradict each other")
	ErrBusy      = errors.New("protection domain or memory region is in use")
	ErrWindow    = errors.New("memory window cannot be bound or invalidated this way")
	ErrFull      = errors.New("table of memory regions is full")
	ErrNotSealed = errors.New("descriptor cannot be mapped safely")
	ErrNotMemory = errors.New("not memory that can be reached")
)

// What can happen while bytes move.
var (
	// ErrArena: IO.Read found no room; there will be some after the next IO.Epoch.
	ErrArena = errors.New("read arena is full")
	// ErrReadSize: IO.Read of more than the arena can ever hold.
	ErrReadSize = errors.New("read is larger than the arena")
	// ErrAlign: an atomic's address is not a multiple of 8.
	ErrAlign = errors.New("atomic operation is not aligned to 8 bytes")
	// ErrFault: the process has no page at the address, or not with these rights.
	ErrFault = errors.New("process has no such memory")
	// ErrGone: the process, or the program that it ran, has ended.
	ErrGone = errors.New("process is gone")
	// ErrPermission: this daemon may not reach the process's memory by process_vm_readv
	// and process_vm_writev.
	ErrPermission = errors.New("not permitted to reach the process's memory")
	// ErrForeign: the region's table is used by another IO.
	ErrForeign = errors.New("memory region belongs to another engine")
)
