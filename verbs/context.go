package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
)

// Option changes how Devices and Open reach the daemon.
type Option func(*options)

type options struct {
	socket string
	conn   *net.UnixConn
}

// WithSocket names the daemon's socket. The default is $SOFTROCE_SOCKET, or else that of the daemon
// which the commands of softroce find: /run/softroce/softroce.sock, or a socket of this user.
func WithSocket(path string) Option { return func(o *options) { o.socket = path } }

// WithConn uses a connected seqpacket socket. Open takes ownership of it, also if it fails.
func WithConn(c *net.UnixConn) Option { return func(o *options) { o.conn = c } }

func dial(ctx context.Context, opts []Option) (*control.Client, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	if o.conn != nil {
		return control.NewClient(ctx, o.conn)
	}
	return control.Dial(ctx, o.socket)
}

// Devices lists the daemon's NICs. Errors: ErrNoDaemon, ErrVersion, EACCES.
func Devices(ctx context.Context, opts ...Option) ([]DeviceInfo, error) {
	client, err := dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	entries, err := list[abi.DeviceEntry](ctx, client, "list devices", abi.OpListDevices)
	if err != nil {
		return nil, err
	}
	infos := make([]DeviceInfo, len(entries))
	for i, e := range entries {
		infos[i] = DeviceInfo{abi.Text(e.Name[:]), abi.Text(e.Netdev[:]), e.NodeGUID, PortState(e.PortState)}
	}
	return infos, nil
}

func list[T any](ctx context.Context, c *control.Client, name string, op uint16) ([]T, error) {
	return control.Await(ctx, name, func() ([]T, error) {
		var reply abi.ListReply
		p, err := c.Call(context.Background(), control.Request{Name: name, Op: op, Reply: &reply})
		if err != nil {
			return nil, publicError(err)
		}
		var zero T
		entries := make([]T, min(int(reply.Count), len(p.Body)/abi.Size(zero)))
		if _, err := abi.Decode(p.Body, entries); err != nil {
			return nil, fmt.Errorf("%s: reply: %w", name, err)
		}
		return entries, nil
	}, nil)
}

// Context is an opened NIC: ibv_context.
type Context struct {
	client *control.Client
	device string

	doorbells  []byte // the page that is shared with the engine
	doorbellFD int
	asleep     *uint32

	rings  chunks
	ahs    addressHandles
	gids   gidCache
	events *eventQueue

	mu       sync.Mutex
	closed   bool
	children map[object]struct{}      // open objects
	closing  map[object]chan struct{} // objects whose Close waits for the daemon; the channel is closed when it ends
	buffers  []*Buffer
	queues   map[uint32]*CQ // by handle, for events
	pairs    map[uint32]*QP
	shared   map[uint32]*SRQ

	posted atomic.Pointer[QP] // whose send queue was posted to last
}

// An object came from a Context. Closing it takes a request to the daemon; abandon only releases
// what this process holds for it.
type object interface{ abandon() }

// Open opens a NIC by name; "" is the daemon's first one. ctx bounds the opening, not the life of
// the Context. Errors: ErrNoDaemon, ErrVersion, ErrNoDevice, EACCES, and EMFILE or ENOMEM if a
// limit is reached.
func Open(ctx context.Context, device string, opts ...Option) (*Context, error) {
	client, err := dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	c := &Context{
		client: client, children: map[object]struct{}{}, closing: map[object]chan struct{}{},
		queues: map[uint32]*CQ{}, pairs: map[uint32]*QP{}, shared: map[uint32]*SRQ{},
	}
	if err := c.open(ctx, device); err != nil {
		client.Close()
		return nil, err
	}
	return c, nil
}

func (c *Context) open(ctx context.Context, device string) error {
	if len(device) >= abi.NameSize {
		return fmt.Errorf("device %q: %w", device, ErrNoDevice)
	}
	var req abi.OpenDeviceRequest
	var got abi.OpenDeviceReply
	abi.PutText(req.Name[:], device)
	p, err := c.client.Call(ctx, control.Request{
		Name: "open device", Op: abi.OpOpenDevice, Body: []any{req}, Reply: &got, Want: 4,
	})
	if err != nil {
		return err
	}
	defer p.CloseFDs()
	c.device = abi.Text(got.Name[:])
	page := p.Take()
	defer unix.Close(page)
	if got.DoorbellSize < abi.DoorbellBits {
		return fmt.Errorf("doorbell page of %d bytes: %w", got.DoorbellSize, syscall.EPROTO)
	}
	c.doorbells, err = mapShared(page, int(got.DoorbellSize))
	if err != nil {
		return err
	}
	c.asleep = word(c.doorbells, abi.DoorbellAsleep)
	c.doorbellFD = p.Take()
	chunk := p.Take()
	defer unix.Close(chunk)
	c.events, err = newEventQueue(c, chunk, p.Take(), &got)
	if err != nil {
		unix.Munmap(c.doorbells)
		unix.Close(c.doorbellFD)
	}
	return err
}

// Device returns the NIC's name.
func (c *Context) Device() string { return c.device }

// Err returns nil while the daemon serves the Context. After that its error matches ErrDeviceFatal,
// with the daemon's reason, or ErrClosed.
func (c *Context) Err() error {
	if !c.client.Ended() {
		return nil
	}
	return c.client.Err()
}

// WhileServed returns a child of ctx that also ends when the daemon stops serving the Context; its
// cause (context.Cause) is then the error of Err. It bounds waits for other things than verbs, such
// as a peer's message over TCP. The returned function releases its resources.
func (c *Context) WhileServed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.client.Done():
			end(c.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// call sends a request to the daemon and waits for the reply, however long that takes. Exported
// functions bound the wait: they run it in control.Await or created.
func (c *Context) call(r control.Request) (control.Packet, error) {
	p, err := c.client.Call(context.Background(), r)
	return p, publicError(err)
}

// A closer is an object that a Context owns.
type closer interface {
	Close(ctx context.Context) error
}

// created runs f, which creates an object, for at most as long as ctx lasts. An object that f
// creates later is closed.
func created[T closer](ctx context.Context, name string, f func() (T, error)) (T, error) {
	return control.Await(ctx, name, f, func(o T) { o.Close(context.Background()) })
}

// create asks for an object whose reply is a HandleReply without descriptors.
func (c *Context) create(name string, op uint16, body ...any) (uint32, error) {
	var got abi.HandleReply
	_, err := c.call(control.Request{Name: name, Op: op, Body: body, Reply: &got})
	return got.Handle, err
}

// destroy asks the daemon to close an object.
func (c *Context) destroy(name string, op uint16, handle uint32) error {
	_, err := c.call(control.Request{Name: name, Op: op, Body: []any{abi.HandleRequest{Handle: handle}}})
	return err
}

// drop destroys an object whose creation failed in this process.
func (c *Context) drop(op uint16, handle uint32) {
	if handle != 0 {
		c.destroy("drop", op, handle)
	}
}

// query sends a request whose reply is a T without descriptors.
func query[T any](ctx context.Context, c *Context, r control.Request) (T, error) {
	return control.Await(ctx, r.Name, func() (got T, err error) {
		r.Reply = &got
		_, err = c.call(r)
		return got, err
	}, nil)
}

// request sends a request whose reply is empty.
func (c *Context) request(ctx context.Context, name string, op uint16, body ...any) error {
	return control.AwaitError(ctx, name, func() error {
		_, err := c.call(control.Request{Name: name, Op: op, Body: body})
		return err
	})
}

// QueryDevice returns the capabilities of the NIC: ibv_query_device.
func (c *Context) QueryDevice(ctx context.Context) (DeviceAttr, error) {
	a, err := query[abi.DeviceAttr](ctx, c, control.Request{Name: "query device", Op: abi.OpQueryDevice})
	return DeviceAttr(a), err
}

// QueryPort returns the state of the NIC's first port: ibv_query_port.
func (c *Context) QueryPort(ctx context.Context) (PortAttr, error) {
	return c.QueryPortNumber(ctx, 1)
}

// QueryPortNumber returns the state of a port by its number, from 1 to DeviceAttr.PhysPortCnt;
// EINVAL for another one.
func (c *Context) QueryPortNumber(ctx context.Context, port uint8) (PortAttr, error) {
	a, err := query[abi.PortAttr](ctx, c, control.Request{Name: "query port", Op: abi.OpQueryPort, Body: []any{abi.QueryPortRequest{Port: uint32(port)}}})
	return PortAttr{
		State: PortState(a.State), MaxMTU: MTU(a.MaxMTU), ActiveMTU: MTU(a.ActiveMTU), GIDTblLen: int(a.GIDTblLen),
		MaxMsgSize: a.MaxMsgSize, PKeyTblLen: int(a.PKeyTblLen), ActiveWidth: a.ActiveWidth,
		ActiveSpeed: a.ActiveSpeed, PhysState: a.PhysState, LinkLayer: a.LinkLayer, CapFlags: a.PortCapFlags,
		BadPKeyCntr: a.BadPKeyCntr, QKeyViolCntr: a.QKeyViolCntr,
	}, err
}

// A gidCache is a copy of the GID table.
type gidCache struct {
	mu      sync.Mutex
	valid   bool
	changes uint32 // of the table, when it was read
	entries []GIDEntry
}

// addressChanges returns a number that the daemon changes when the GID table changes.
func (c *Context) addressChanges() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	return atomic.LoadUint32(word(c.doorbells, abi.DoorbellAddresses))
}

// GIDs returns the entries of the GID table that are in use. The daemon is asked only if the table
// has changed.
func (c *Context) GIDs(ctx context.Context) ([]GIDEntry, error) {
	if gids, ok := c.cachedGIDs(); ok {
		return gids, ctx.Err()
	}
	changes := c.addressChanges()
	entries, err := list[abi.GIDEntry](ctx, c.client, "query GIDs", abi.OpQueryGIDs)
	if err != nil {
		return nil, err
	}
	gids := make([]GIDEntry, len(entries))
	for i, e := range entries {
		gids[i] = GIDEntry{int(e.Index), e.GID, abi.Text(e.Netdev[:]), int(e.VLAN), e.Type == ib.GIDTypeRoCEv1}
	}
	t := &c.gids
	t.mu.Lock()
	defer t.mu.Unlock()
	t.valid, t.changes, t.entries = true, changes, gids
	return slices.Clone(gids), nil
}

func (c *Context) cachedGIDs() (gids []GIDEntry, ok bool) {
	t := &c.gids
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.valid || c.client.Ended() || t.changes != c.addressChanges() {
		return nil, false
	}
	return slices.Clone(t.entries), true
}

// PKeys returns the P_Key table, by index: ibv_query_pkey. 0 is an index without a key.
func (c *Context) PKeys(ctx context.Context) ([]uint16, error) {
	return list[uint16](ctx, c.client, "query P_Keys", abi.OpQueryPKeys)
}

// QueryClock returns the present time of the NIC, on the clock of WC.Timestamp and as
// WC.WallclockNS: ibv_query_rt_values_ex.
func (c *Context) QueryClock(ctx context.Context) (timestamp, wallclockNS uint64, err error) {
	r, err := query[abi.ClockReply](ctx, c, control.Request{Name: "query clock", Op: abi.OpQueryClock})
	return r.Clock, r.Wallclock, err
}

// adopted registers a new object with the Context, which closes it in Close, and returns it. If the
// Context is closed already, it abandons the object.
func adopted[T object](c *Context, o T) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		o.abandon()
		var none T
		return none, ErrClosed
	}
	c.children[o] = struct{}{}
	switch o := any(o).(type) {
	case *Buffer:
		c.buffers = append(c.buffers, o)
	case *CQ:
		c.queues[o.handle] = o
	case *QP:
		c.pairs[o.handle] = o
	case *SRQ:
		c.shared[o.handle] = o
	}
	return o, nil
}

// owns reports whether the object is open.
func (c *Context) owns(o object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.children[o]
	return ok
}

// disown removes an object from the Context. It returns false if the object was closed before.
func (c *Context) disown(o object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.children[o]; !ok {
		return false
	}
	delete(c.children, o)
	switch o := o.(type) {
	case *Buffer:
		c.buffers = slices.DeleteFunc(c.buffers, func(b *Buffer) bool { return b == o })
	case *CQ:
		delete(c.queues, o.handle)
	case *QP:
		delete(c.pairs, o.handle)
	case *SRQ:
		delete(c.shared, o.handle)
	}
	return true
}

// closeObject is the Close of every object: first the daemon closes it, then this process releases
// what it holds. If the daemon refuses (EBUSY: something uses the object), the object stays open.
// released, if not nil, runs after the object is closed.
//
// If ctx ends before the reply, the object is closed when the reply arrives. A second Close waits
// for the first: the daemon may have given the handle to another object by then.
func (c *Context) closeObject(ctx context.Context, o object, name string, op uint16, handle uint32, released func()) error {
	return control.AwaitError(ctx, name, func() error {
		done, err := c.startClosing(o)
		if err != nil {
			return err
		}
		defer c.endClosing(o, done)
		q, posts := o.(interface{ setClosing(bool) })
		if posts {
			q.setClosing(true)
		}
		if err := c.destroy(name, op, handle); err != nil && c.Err() == nil {
			if posts {
				q.setClosing(false)
			}
			return err
		}
		if !c.disown(o) {
			return ErrClosed
		}
		o.abandon()
		if released != nil {
			released()
		}
		return nil
	})
}

// startClosing waits until no other Close of o waits for the daemon.
func (c *Context) startClosing(o object) (done chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if _, open := c.children[o]; !open {
			return nil, ErrClosed
		}
		other, busy := c.closing[o]
		if !busy {
			done = make(chan struct{})
			c.closing[o] = done
			return done, nil
		}
		c.mu.Unlock()
		<-other
		c.mu.Lock()
	}
}

func (c *Context) endClosing(o object, done chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closing, o)
	close(done)
}

// AsyncEvent waits for the next asynchronous event: ibv_get_async_event. After EventDeviceFatal it
// returns ErrDeviceFatal.
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	for {
		e, err := c.events.next(ctx)
		if err != nil {
			return AsyncEvent{}, err
		}
		ev := AsyncEvent{EventType: EventType(e.Type), Port: uint8(e.Port)}
		c.mu.Lock()
		switch {
		case ev.EventType == EventCQErr:
			ev.CQ = c.queues[e.Handle]
		case ev.EventType == EventSRQErr || ev.EventType == EventSRQLimitReached:
			ev.SRQ = c.shared[e.Handle]
		case e.Handle != 0:
			ev.QP = c.pairs[e.Handle]
		}
		c.mu.Unlock()
		if e.Handle != 0 && ev.QP == nil && ev.CQ == nil && ev.SRQ == nil {
			continue // the object of the event has been closed
		}
		return ev, nil
	}
}

// closeTimeout bounds how long Close waits for the daemon.
const closeTimeout = 10 * time.Second

// Close closes the NIC and everything that came from the Context, the memory of its Buffers too.
// Peers see what they would see if the process had ended. When Close returns nil, the NIC no longer
// accesses this process's memory. Close waits at most ten seconds for that; see Shutdown.
func (c *Context) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.Shutdown(ctx)
}

// Shutdown is Close with a bound of the caller's choice on the wait for the daemon. If ctx ends
// first, the Context is closed all the same and the error is ctx's. The daemon may then still
// access registered memory, which therefore stays pinned until the daemon closes the connection.
func (c *Context) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.closed = true
	children := c.children
	c.children = map[object]struct{}{}
	c.mu.Unlock()

	hung := control.AwaitError(ctx, "close context", c.client.Shutdown)
	for o := range children {
		if m, ok := o.(*MR); ok && hung != nil {
			go m.abandonAfter(c.client.Done())
			continue
		}
		o.abandon()
	}
	c.events.close()
	unix.Close(c.doorbellFD)
	return errors.Join(hung, unix.Munmap(c.doorbells))
}
