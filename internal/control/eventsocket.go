package control

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// An EventSocket receives one byte from the daemon for each event. Its end of file says that the
// daemon is gone. One goroutine reads at a time: the one between Acquire and Release.
type EventSocket struct {
	client *Client
	f      *os.File
	reader chan struct{} // holds a token while a goroutine reads
	closed chan struct{}
	buf    [1]byte
}

// NewEventSocket takes ownership of fd. The daemon made it non-blocking, so reads wait in the
// runtime's poller and hold no thread.
func NewEventSocket(c *Client, fd int) *EventSocket {
	return &EventSocket{
		client: c, f: os.NewFile(uintptr(fd), "events"), reader: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// Acquire makes the caller the reader, until Release.
func (s *EventSocket) Acquire(ctx context.Context) error {
	select {
	case s.reader <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.reader <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release lets another goroutine read.
func (s *EventSocket) Release() { <-s.reader }

// Wait consumes one event. Its error is that of ctx, ErrClosed, or ErrGone when the daemon is gone.
func (s *EventSocket) Wait(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { s.f.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	for {
		// The function above may run after the Wait that registered it, and end the read of the
		// next one. So the deadline is cleared first, and an expired deadline counts only if ctx
		// has ended too.
		s.f.SetReadDeadline(time.Time{})
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := s.f.Read(s.buf[:])
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF):
			return s.endOfFile(ctx)
		case errors.Is(err, os.ErrClosed):
			return ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// endOfFile returns why the daemon closed its end: the object was closed, or the connection ended.
func (s *EventSocket) endOfFile(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	case <-s.client.Done():
		return s.client.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close makes Wait return ErrClosed.
func (s *EventSocket) Close() {
	s.f.Close()
	close(s.closed)
}
