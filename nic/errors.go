package nic

import (
	"fmt"
	"syscall"
)

// An Error is why a verb failed: an errno, as ibv_* functions return it, and a text. errors.Is
// matches it with its syscall.Errno. ENOENT means an object that was destroyed or belongs to
// another context.
type Error struct {
	Errno syscall.Errno
	Text  string
}

func (e *Error) Error() string { return e.Text + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func errorf(no syscall.Errno, format string, a ...any) error {
	return &Error{Errno: no, Text: fmt.Sprintf(format, a...)}
}
