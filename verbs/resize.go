package verbs

import (
	"context"
	"sync"

	"softroce/internal/control"
)

// A resize is the state of a queue that may be moving to a ring of another size, or being
// destroyed. From the moment in which the daemon receives the request, this process does not know
// which of the two rings is in use, or whether another queue has the ring's memory, so it uses no
// ring until the reply has arrived. The queue's lock guards it.
type resize struct {
	done      chan struct{} // closed when the reply has arrived; nil while no request is outstanding
	abandoned chan struct{} // closed when the caller no longer waits for the reply
}

// run performs f, which sends the request and installs the new ring. mu is the queue's lock, which
// f acquires for the installation. One resize runs at a time.
func (r *resize) run(ctx context.Context, name string, mu *sync.Mutex, f func() error) error {
	done, abandoned := make(chan struct{}), make(chan struct{})
	defer close(abandoned)
	return control.AwaitError(ctx, name, func() error {
		mu.Lock()
		for r.done != nil {
			other := r.done
			mu.Unlock()
			<-other
			mu.Lock()
		}
		r.done, r.abandoned = done, abandoned
		mu.Unlock()
		err := f()
		mu.Lock()
		r.done, r.abandoned = nil, nil
		mu.Unlock()
		close(done)
		return err
	})
}

// wait returns true when no resize is outstanding, and false when the caller of an outstanding one
// has stopped waiting for the daemon. The caller holds mu, which wait releases meanwhile.
func (r *resize) wait(mu *sync.Mutex) bool {
	for r.done != nil {
		done, abandoned := r.done, r.abandoned
		mu.Unlock()
		select {
		case <-done:
			mu.Lock()
		case <-abandoned:
			mu.Lock()
			if r.done == done {
				return false
			}
		}
	}
	return true
}

// finish waits until no resize is outstanding, or ctx ends. The caller holds mu, which finish
// releases meanwhile.
func (r *resize) finish(ctx context.Context, mu *sync.Mutex) error {
	for r.done != nil {
		done := r.done
		mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
