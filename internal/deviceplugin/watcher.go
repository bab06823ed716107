package deviceplugin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"softroce/internal/ib"
	"softroce/verbs"
)

// A nic is a NIC of the daemon.
type nic struct {
	name string
	up   bool // the daemon serves it, and its port is active
}

// retryPause is the time between two attempts to reach the daemon or the kubelet.
const retryPause = time.Second

// A watcher follows the NICs of a daemon.
type watcher struct {
	socket  string
	changed func(before, now []nic) // called after each change, one call at a time
	log     *logger

	mu   sync.Mutex
	nics []nic
	news chan struct{} // closed at the next change
}

func newWatcher(socket string, log *logger) *watcher {
	return &watcher{socket: socket, log: log, news: make(chan struct{})}
}

// state returns the NICs, and a channel that is closed when they change.
func (w *watcher) state() ([]nic, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nics, w.news
}

// update replaces the NICs by what change returns for them.
func (w *watcher) update(change func(nics []nic) []nic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := change(slices.Clone(w.nics))
	if slices.Equal(now, w.nics) {
		return
	}
	if w.changed != nil {
		w.changed(w.nics, now)
	}
	w.nics = now
	close(w.news)
	w.news = make(chan struct{})
}

// run follows one daemon after the other until ctx ends.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.follow(ctx)
		w.update(func(nics []nic) []nic {
			for i := range nics {
				nics[i].up = false
			}
			return nics
		})
		if ctx.Err() != nil {
			return
		}
		w.log.once("daemon", "waits for the daemon: %v", err)
		sleep(ctx, retryPause)
	}
}

// follow follows the NICs of one daemon until it ends.
func (w *watcher) follow(ctx context.Context) error {
	infos, err := verbs.Devices(ctx, verbs.WithSocket(w.socket))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var contexts []*verbs.Context
	defer func() {
		for _, c := range contexts {
			c.Close()
		}
	}()
	now := make([]nic, len(infos))
	for i, info := range infos {
		c, err := verbs.Open(ctx, info.Name, verbs.WithSocket(w.socket))
		if err != nil {
			return err
		}
		contexts = append(contexts, c)
		now[i] = nic{name: info.Name, up: active(info.State)}
	}
	w.log.clear("daemon")
	w.update(func([]nic) []nic { return now })
	var all sync.WaitGroup
	defer all.Wait()
	for _, c := range contexts {
		all.Go(func() { cancel(w.followPort(ctx, c)) })
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// followPort follows the port of a NIC until the daemon ends.
func (w *watcher) followPort(ctx context.Context, c *verbs.Context) error {
	for {
		// An event that occurs between these calls waits for the second one.
		port, err := c.QueryPort(ctx)
		if c.Err() != nil || ctx.Err() != nil {
			return errors.Join(c.Err(), ctx.Err())
		}
		up := err == nil && active(port.State)
		w.update(func(nics []nic) []nic {
			for i := range nics {
				if nics[i].name == c.Device() {
					nics[i].up = up
				}
			}
			return nics
		})
		if err != nil { // a fault rule, or a limit of the daemon
			w.log.once(c.Device(), "NIC %s: %v", c.Device(), err)
			sleep(ctx, retryPause)
			continue
		}
		w.log.clear(c.Device())
		if _, err := c.AsyncEvent(ctx); err != nil {
			return err
		}
	}
}

func active(s verbs.PortState) bool { return s == verbs.PortState(ib.PortActive) }

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
