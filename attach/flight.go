package attach

import "sync"

// A flight lets callers that need the same result at the same time share it: a caller that arrives
// while the result is being computed gets that result.
type flight[T any] struct {
	mu     sync.Mutex
	making map[string]*made[T] // by key
}

type made[T any] struct {
	done  chan struct{}
	users int // that have not returned from use
	value T
	err   error
}

// share calls use with the result of create for a key. When all that share a result have used it,
// release is called, unless it is nil.
func (f *flight[T]) share(key string, create func() (T, error), use func(T) error, release func(T)) error {
	f.mu.Lock()
	m := f.making[key]
	first := m == nil
	if first {
		m = &made[T]{done: make(chan struct{})}
		if f.making == nil {
			f.making = map[string]*made[T]{}
		}
		f.making[key] = m
	}
	m.users++
	f.mu.Unlock()
	if first {
		m.value, m.err = create()
		f.mu.Lock()
		delete(f.making, key)
		f.mu.Unlock()
		close(m.done)
	}
	<-m.done
	if m.err != nil {
		return m.err
	}
	err := use(m.value)
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.users--; m.users == 0 && release != nil {
		release(m.value)
	}
	return err
}
