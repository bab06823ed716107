package wire

import (
	"sync"
	"time"
)

// A sharedRead lets goroutines that need the same state of the system share the reading of it: one
// read at a time serves all that have asked before it began. Its zero value is ready to use.
type sharedRead[T any] struct {
	mu   sync.Mutex
	last *read[T] // in progress or ended
	next *read[T] // has not begun; nil if there is none
}

type read[T any] struct {
	done  chan struct{}
	value T
	err   error

	ended time.Time
	took  time.Duration
}

// do returns what f returns in a call that began after that of do. Reads follow each other after a
// pause as long as the last one, so that they keep no processor busy.
func (s *sharedRead[T]) do(f func() (T, error)) (T, error) {
	s.mu.Lock()
	if r := s.next; r != nil {
		s.mu.Unlock()
		<-r.done
		return r.value, r.err
	}
	r, last := &read[T]{done: make(chan struct{})}, s.last
	s.next = r
	s.mu.Unlock()
	if last != nil {
		<-last.done
		time.Sleep(last.took - time.Since(last.ended))
	}
	s.mu.Lock()
	s.last, s.next = r, nil
	s.mu.Unlock()
	begin := time.Now()
	r.value, r.err = f()
	r.ended = time.Now()
	r.took = r.ended.Sub(begin)
	close(r.done)
	return r.value, r.err
}
