package verbs

import (
	"fmt"
	"syscall"

	"softroce/internal/control"
)

// Errors that this package adds to the system's error numbers. Match with errors.Is.
var (
	// ErrClosed: the object, or the Context that it belongs to, was closed here.
	ErrClosed = control.ErrClosed

	// ErrDeviceFatal: the daemon ended, or took the context away. Nothing of the
	// Context works any more; close it.
	ErrDeviceFatal = control.ErrGone

	// ErrNoDaemon: nothing listens on the socket. Matches the error of connect too.
	ErrNoDaemon = control.ErrNoDaemon

	// ErrVersion: the daemon speaks another version of the attach ABI.
	ErrVersion = control.ErrVersion

	// ErrNoDevice: the daemon has no NIC of that name. Matches ENODEV.
	ErrNoDevice error = syscall.ENODEV

	// ErrQueueFull: the queue has no room for the work requests; none was posted.
	// Matches ENOMEM too, which is what libibverbs returns.
	ErrQueueFull error = &postError{"queue is full", syscall.ENOMEM}

	// ErrWorkRequest: a work request has more SGEs or inline data than the queue pair was
	// created for, or an operation that it has not; none was posted. Matches EINVAL.
	ErrWorkRequest error = &postError{"work request does not fit the queue pair", syscall.EINVAL}

	// ErrState: the queue pair's state does not take such work requests. Matches EINVAL.
	ErrState error = &postError{"state of the queue pair forbids it", syscall.EINVAL}
)

// Error is a request that the daemon, or this package in its place, refused. It matches its Errno:
// errors.Is(err, syscall.EINVAL).
type Error struct {
	Op    string // the operation: "create QP"
	Errno syscall.Errno
	Text  string // an explanation, may be empty
}

func (e *Error) Error() string { return (*control.Error)(e).Error() }

// Unwrap returns the Errno.
func (e *Error) Unwrap() error { return e.Errno }

// publicError turns the daemon's refusal into an *Error.
func publicError(err error) error {
	if e, ok := err.(*control.Error); ok {
		return (*Error)(e)
	}
	return err
}

// WCError is a work request that completed with an error. Two of them match (errors.Is)
// if their Status is the same, so that &WCError{Status: WCRemAccessErr} can be looked for.
type WCError struct {
	Status    WCStatus
	VendorErr uint32
	WRID      uint64
	QPNum     uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("QP %#x: work request %#x: %v", e.QPNum, e.WRID, e.Status)
}

// Is reports whether target is a *WCError of the same status.
func (e *WCError) Is(target error) bool {
	t, ok := target.(*WCError)
	return ok && t.Status == e.Status
}

// Err returns nil where the work request succeeded, otherwise a *WCError.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{w.Status, w.VendorErr, w.WRID, w.QPNum}
}

type postError struct {
	text  string
	errno syscall.Errno
}

func (e *postError) Error() string { return e.text }
func (e *postError) Unwrap() error { return e.errno }
