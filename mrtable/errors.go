package mrtable

import "errors"

// Reasons for rejecting an access. Table.Local and Table.Remote return these values unwrapped.
var (
	ErrKey    = errors.New("no memory region or window has this key")
	ErrQP     = errors.New("memory window is bound to another queue pair")
	ErrPD     = errors.New("memory region belongs to another protection domain")
	ErrAccess = errors.New("memory region does not grant this access")
	ErrBounds = errors.New("range is outside the memory region")
)

// Reasons for rejecting a registration, a bind, or the release of a domain or region.
var (
	ErrFlags     = errors.New("access flags are unknown or contradict each other")
	ErrBusy      = errors.New("protection domain or memory region is in use")
	ErrWindow    = errors.New("memory window does not allow this bind or invalidation")
	ErrFull      = errors.New("table of memory regions is full")
	ErrNotSealed = errors.New("descriptor cannot be mapped safely")
	ErrNotMemory = errors.New("not accessible memory")
)

// Errors of the methods of IO.
var (
	// ErrArena reports that the read arena is full until the next IO.Epoch.
	ErrArena = errors.New("read arena is full")
	// ErrReadSize reports a read that is larger than the arena.
	ErrReadSize = errors.New("read is larger than the arena")
	// ErrAlign reports an atomic whose address is not a multiple of 8.
	ErrAlign = errors.New("atomic operation is not aligned to 8 bytes")
	// ErrFault reports an address that is not mapped in the process, or not with the required
	// access.
	ErrFault = errors.New("address is not mapped in the process")
	// ErrGone reports that the process has ended or executed another program.
	ErrGone = errors.New("process has ended")
	// ErrPermission reports that this daemon may not use process_vm_readv and process_vm_writev on
	// the process.
	ErrPermission = errors.New("not permitted to access the process's memory")
	// ErrWait reports that a batch of the client has not returned yet.
	ErrWait = errors.New("an earlier access to the client's memory has not returned")
	// ErrForeign reports that another IO uses the region's table.
	ErrForeign = errors.New("memory region belongs to another engine")
)
