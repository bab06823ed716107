package verbs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// AH is an address handle: ibv_ah.
type AH struct {
	ctx    *Context
	handle atomic.Uint32 // 0 when closed
	shared *sharedAH
}

// CreateAH creates an address handle for work requests of UD queue pairs: ibv_create_ah. It
// resolves the next hop, unless the process had an address handle for the same destination within
// the last second.
func (p *PD) CreateAH(ctx context.Context, a AHAttr) (*AH, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, key := p.ctx, abi.CreateAHRequest{PD: p.handle, AH: a.abi()}
	if s, err := c.ahs.find(c, key); err != nil {
		return nil, err
	} else if s != nil {
		return c.newAH(s)
	}
	return created(ctx, "create AH", func() (*AH, error) {
		if err := c.ahs.reserve(); err != nil {
			return nil, err
		}
		s, err := c.createAH(key)
		if err != nil {
			c.ahs.unreserve()
			return nil, err
		}
		return c.newAH(s)
	})
}

func (c *Context) newAH(s *sharedAH) (*AH, error) {
	a := &AH{ctx: c, shared: s}
	a.handle.Store(s.handle)
	return adopted(c, a)
}

func (a *AH) abandon() { a.handle.Store(0) }

// Close destroys the address handle.
func (a *AH) Close(ctx context.Context) error {
	c := a.ctx
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.disown(a) {
		return ErrClosed
	}
	a.abandon()
	unused := c.ahs.release(a.shared)
	if unused == 0 {
		return nil
	}
	return control.AwaitError(ctx, "destroy AH", func() error { return c.destroyAH(unused) })
}

// A sharedAH is an address handle of the daemon, that several of the program with the same
// attributes share.
type sharedAH struct {
	key     abi.CreateAHRequest
	handle  uint32
	users   int
	listed  bool   // new users may be added
	changes uint32 // of the addresses of the NIC, when it was created
	created time.Time
}

// addressHandles are the address handles of a Context. A few that have no user are kept: programs
// that reply to datagrams create one for each reply.
type addressHandles struct {
	mu    sync.Mutex
	users int // address handles of the program
	max   int // the most that it may have; 0 if that is not known
	found map[abi.CreateAHRequest]*sharedAH
	idle  []*sharedAH // without users, oldest first
}

const (
	maxIdleAHs = 16
	maxAHAge   = time.Second // after that the next hop is resolved again
)

var errAHLimit error = &Error{Op: "create AH", Errno: syscall.ENOMEM, Text: "all address handles are in use"}

// reserve counts an address handle of the program.
func (t *addressHandles) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reserveLocked()
}

func (t *addressHandles) reserveLocked() error {
	if t.max > 0 && t.users >= t.max {
		return errAHLimit
	}
	t.users++
	return nil
}

func (t *addressHandles) unreserve() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users--
}

// find adds a user to an address handle that can be shared, nil if there is none.
func (t *addressHandles) find(c *Context, key abi.CreateAHRequest) (*sharedAH, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.found[key]
	if s == nil || s.changes != c.addressChanges() || time.Since(s.created) > maxAHAge || c.client.Ended() {
		return nil, nil
	}
	if err := t.reserveLocked(); err != nil {
		return nil, err
	}
	if s.users++; s.users == 1 {
		t.idle = slices.DeleteFunc(t.idle, func(o *sharedAH) bool { return o == s })
	}
	return s, nil
}

// add lists a new address handle with one user, in place of one that has aged. It returns the
// handle of that one if the daemon must destroy it, or 0.
func (t *addressHandles) add(s *sharedAH, max int) (unused uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.max = max
	if old := t.found[s.key]; old != nil {
		unused = t.unlist(old)
	}
	if t.found == nil {
		t.found = map[abi.CreateAHRequest]*sharedAH{}
	}
	s.users, s.listed, t.found[s.key] = 1, true, s
	return unused
}

// unlist removes an address handle from what new users find. It returns its handle if it has no
// user, or 0.
func (t *addressHandles) unlist(s *sharedAH) uint32 {
	delete(t.found, s.key)
	s.listed = false
	if s.users > 0 {
		return 0
	}
	t.idle = slices.DeleteFunc(t.idle, func(o *sharedAH) bool { return o == s })
	return s.handle
}

// release removes a user. It returns the handle that the daemon must destroy, or 0.
func (t *addressHandles) release(s *sharedAH) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users--
	if s.users--; s.users > 0 {
		return 0
	}
	if !s.listed {
		return s.handle
	}
	t.idle = append(t.idle, s)
	if len(t.idle) > maxIdleAHs {
		return t.unlist(t.idle[0])
	}
	return 0
}

// takeIdle unlists the address handles without users, of one PD or, if it is 0, of all.
func (t *addressHandles) takeIdle(pd uint32) (unused []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range slices.Clone(t.idle) {
		if pd == 0 || s.key.PD == pd {
			unused = append(unused, t.unlist(s))
		}
	}
	return unused
}

// createAH makes the daemon create an address handle. It destroys those without users if there
// are too many.
func (c *Context) createAH(key abi.CreateAHRequest) (*sharedAH, error) {
	s := &sharedAH{key: key, changes: c.addressChanges(), created: time.Now()}
	var got abi.CreateAHReply
	request := control.Request{Name: "create AH", Op: abi.OpCreateAH, Body: []any{key}, Reply: &got}
	_, err := c.call(request)
	if errors.Is(err, syscall.ENOMEM) && c.dropIdleAHs(0) {
		_, err = c.call(request)
	}
	if err != nil {
		return nil, err
	}
	s.handle = got.Handle
	if unused := c.ahs.add(s, int(got.MaxAH)); unused != 0 {
		c.destroyAH(unused)
	}
	return s, nil
}

// dropIdleAHs destroys the address handles without users, of one PD or, if it is 0, of all.
func (c *Context) dropIdleAHs(pd uint32) (any bool) {
	for _, handle := range c.ahs.takeIdle(pd) {
		c.destroyAH(handle)
		any = true
	}
	return any
}

// destroyAH makes the daemon destroy an address handle. It succeeds if the daemon is gone.
func (c *Context) destroyAH(handle uint32) error {
	if err := c.destroy("destroy AH", abi.OpDestroyAH, handle); err != nil && c.Err() == nil {
		return err
	}
	return nil
}
