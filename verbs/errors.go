package verbs

import (
	"fmt"
	"syscall"

	"softroce/internal/control"
)

// Errors of this package, besides the system's error numbers. Match with errors.Is.
var (
	// ErrClosed: this process closed the object or its Context.
	ErrClosed = control.ErrClosed

	// ErrDeviceFatal: the daemon ended or closed the connection. The Context is of no more use;
	// close it.
	ErrDeviceFatal = control.ErrGone

	// ErrNoDaemon: nothing listens on the socket. The error also matches that of connect.
	ErrNoDaemon = control.ErrNoDaemon

	// ErrVersion: the daemon has another version of the attach ABI.
	ErrVersion = control.ErrVersion

	// ErrNoDevice: the daemon has no NIC with that name. Matches ENODEV.
	ErrNoDevice error = syscall.ENODEV

	// ErrQueueFull: the queue has no room for the work requests; none was posted. Matches ENOMEM,
	// the error of libibverbs.
	ErrQueueFull error = &postError{"queue is full", syscall.ENOMEM}

	// ErrWorkRequest: a work request has more SGEs or inline data than the queue pair has room for,
	// or an operation that its type does not have; none was posted. Matches EINVAL.
	ErrWorkRequest error = &postError{"work request exceeds the capacity or type of the queue pair", syscall.EINVAL}

	// ErrState: the queue pair cannot accept work requests in its state. Matches EINVAL.
	ErrState error = &postError{"the state of the queue pair does not allow this work request", syscall.EINVAL}
)

// Error is a request that the daemon, or this package on its behalf, refused. It matches its Errno:
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

// WCError is the error of a completed work request. Two of them match (errors.Is) if they have the
// same Status: errors.Is(err, &WCError{Status: WCRemAccessErr}).
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

// Err returns nil if the work request succeeded, otherwise a *WCError.
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
