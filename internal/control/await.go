package control

import (
	"context"
	"fmt"
)

// Await runs f, which waits for the daemon, and returns its result. If ctx ends first, Await
// returns ctx's error at once and f goes on in the background; if f then succeeds, undo receives
// what it returned. So f must not use memory that the caller of Await may reuse. undo may be nil.
func Await[T any](ctx context.Context, name string, f func() (T, error), undo func(T)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%s: %w", name, err)
	}
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := f()
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
	}
	go func() {
		if o := <-done; o.err == nil && undo != nil {
			undo(o.value)
		}
	}()
	return zero, fmt.Errorf("%s: %w", name, ctx.Err())
}

// AwaitError is Await for an operation without a result.
func AwaitError(ctx context.Context, name string, f func() error) error {
	_, err := Await(ctx, name, func() (struct{}, error) { return struct{}{}, f() }, nil)
	return err
}
