package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors that this package adds to the system's error numbers. Match with errors.Is.
var (
	// ErrClosed: the object, or the Context that it belongs to, was closed here.
	ErrClosed = errors.New("verbs: closed")

	// ErrDeviceFatal: the daemon ended, or took the context away. Nothing of the
	// Context works any more; close it.
	ErrDeviceFatal = errors.New("verbs: device fatal: the connection to the daemon is gone")

	// ErrNoDaemon: nothing listens on the socket. Wraps the error of connect.
	ErrNoDaemon = errors.New("verbs: no softroce daemon")

	// ErrNoDevice: the daemon has no NIC of that name.
	ErrNoDevice = errors.New("verbs: no such device")

	// ErrVersion: the daemon speaks another version of the attach ABI.
	ErrVersion = errors.New("verbs: the daemon speaks another version of the attach ABI")

	// ErrQueueFull: the queue has no room for the work requests; none was posted.
	// Matches ENOMEM too, which is what libibverbs returns.
	ErrQueueFull error = &postError{"queue is full", syscall.ENOMEM}

	// ErrWorkRequest: a work request has more SGEs or inline data than the queue pair was
	// created for, or an operation that it has not; none was posted. Matches EINVAL.
	ErrWorkRequest error = &postError{"work request does not fit the queue pair", syscall.EINVAL}

	// ErrState: the queue pair's state does not take such work requests. Matches EINVAL.
	ErrState error = &postError{"state of the queue pair forbids it", syscall.EINVAL}
)

// Error is a request that the daemon refused. errors.Is(err, syscall.EINVAL) and its
// like look at Errno.
type Error struct {
	Op    string // what was asked: "create QP"
	Errno syscall.Errno
	Text  string // the daemon's explanation, may be empty
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("verbs: %s: %v", e.Op, e.Errno)
	}
	return fmt.Sprintf("verbs: %s: %s (%v)", e.Op, e.Text, e.Errno)
}

func (e *Error) Unwrap() error { return e.Errno }

// WCError is a work request that completed with an error. Two of them match (errors.Is)
// if their Status is the same, so that &WCError{Status: WCRemAccessErr} can be looked for.
type WCError struct {
	Status    WCStatus
	VendorErr uint32
	WRID      uint64
	QPNum     uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("verbs: QP %#x: work request %#x: %v", e.QPNum, e.WRID, e.Status)
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

func (e *postError) Error() string { return "verbs: " + e.text }
func (e *postError) Unwrap() error { return e.errno }
