// Package sharelock has a lock for what several engines may share, but mostly one alone uses.
package sharelock

import "sync"

// A Mutex does nothing until it is shared.
type Mutex struct {
	shared bool
	mu     sync.Mutex
}

// Share makes m a lock. No other goroutine may use m meanwhile.
func (m *Mutex) Share() { m.shared = true }

// Lock implements sync.Locker.
func (m *Mutex) Lock() {
	if m.shared {
		m.mu.Lock()
	}
}

// Unlock implements sync.Locker.
func (m *Mutex) Unlock() {
	if m.shared {
		m.unlock()
	}
}

// unlock is apart so that the compiler inlines Unlock.
//
//go:noinline
func (m *Mutex) unlock() { m.mu.Unlock() }
