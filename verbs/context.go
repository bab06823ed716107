package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// Option changes how Devices and Open reach the daemon.
type Option func(*options)

type options struct {
	socket string
	conn   *net.UnixConn
}

// WithSocket names the daemon's socket. Without it $SOFTROCE_SOCKET counts, or else
// /run/softroce/softroce.sock.
func WithSocket(path string) Option { return func(o *options) { o.socket = path } }

// WithConn uses a seqpacket socket that is already connected. It is closed with the
// Context, and also where Open fails.
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
	var reply abi.ListReply
	p, err := c.Call(ctx, control.Request{Name: name, Op: op, Reply: &reply})
	if err != nil {
		return nil, err
	}
	var zero T
	entries := make([]T, min(int(reply.Count), len(p.Body)/abi.Size(zero)))
	if _, err := abi.Decode(p.Body, entries); err != nil {
		return nil, fmt.Errorf("%s: reply: %w", name, err)
	}
	return entries, nil
}

// Context is an opened NIC: ibv_context.
type Context struct {
	client *control.Client
	device string

	doorbells  []byte // the page that is shared with the engine
	doorbellFD int
	asleep     *uint32

	events *eventQueue

	mu       sync.Mutex
	closed   bool
	children map[closer]struct{} // what came from the Context and is open
	buffers  []*Buffer
	queues   map[uint32]*CQ // by handle, for events
	pairs    map[uint32]*QP
	shared   map[uint32]*SRQ
}

// A closer is an object of a Context. Close of a PD, for example, asks the daemon;
// abandon gives up only what this process holds.
type closer interface{ abandon() }

// Open opens a NIC by its name; "" is the daemon's first one. ctx bounds the opening,
// not the Context. Errors: ErrNoDaemon, ErrVersion, ErrNoDevice, EACCES, and EMFILE or
// ENOMEM where a limit is reached.
func Open(ctx context.Context, device string, opts ...Option) (*Context, error) {
	client, err := dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	c := &Context{
		client: client, children: map[closer]struct{}{},
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
	var ask abi.OpenDeviceRequest
	var got abi.OpenDeviceReply
	abi.PutText(ask.Name[:], device)
	p, err := c.client.Call(ctx, control.Request{
		Name: "open device", Op: abi.OpOpenDevice, Body: []any{ask}, Reply: &got, Want: 4,
	})
	if err != nil {
		return err
	}
	defer p.CloseFDs()
	c.device = abi.Text(got.Name[:])
	page := p.Take()
	defer unix.Close(page)
	c.doorbells, err = mapShared(page, int(got.DoorbellSize))
	if err != nil {
		return err
	}
	c.asleep = word(c.doorbells, abi.DoorbellAsleep)
	c.doorbellFD = p.Take()
	ring := p.Take()
	defer unix.Close(ring)
	c.events, err = newEventQueue(c, ring, p.Take(), int(got.EventSlots))
	if err != nil {
		unix.Munmap(c.doorbells)
		unix.Close(c.doorbellFD)
	}
	return err
}

// Device returns the NIC's name.
func (c *Context) Device() string { return c.device }

// Err returns nil while the daemon serves the Context. Later it matches ErrDeviceFatal,
// with the daemon's reason, or ErrClosed.
func (c *Context) Err() error {
	if !c.client.Ended() {
		return nil
	}
	err := c.client.Err()
	if errors.Is(err, control.ErrClosed) {
		return ErrClosed
	}
	return err
}

// WhileServed returns a child of ctx that also ends when the daemon serves the Context no
// more: its cause (context.Cause) is then what Err returns. It is for waits on something
// else than verbs, such as a peer's word over TCP. The function releases what that takes.
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

// call asks the daemon for something that takes no longer than its engine's round.
func (c *Context) call(r control.Request) (control.Packet, error) {
	return c.callContext(context.Background(), r)
}

func (c *Context) callContext(ctx context.Context, r control.Request) (control.Packet, error) {
	p, err := c.client.Call(ctx, r)
	if errors.Is(err, control.ErrClosed) {
		err = ErrClosed
	}
	return p, err
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

// drop destroys an object whose creation failed on this side.
func (c *Context) drop(op uint16, handle uint32) {
	if handle != 0 {
		c.destroy("drop", op, handle)
	}
}

// QueryDevice returns what the NIC can do.
func (c *Context) QueryDevice() (DeviceAttr, error) {
	var a DeviceAttr
	_, err := c.call(control.Request{Name: "query device", Op: abi.OpQueryDevice, Reply: &a})
	return a, err
}

// QueryPort returns the state of the NIC's port.
func (c *Context) QueryPort() (PortAttr, error) {
	var a abi.PortAttr
	_, err := c.call(control.Request{Name: "query port", Op: abi.OpQueryPort, Reply: &a})
	return PortAttr{
		State: PortState(a.State), MaxMTU: MTU(a.MaxMTU), ActiveMTU: MTU(a.ActiveMTU), GIDTblLen: int(a.GIDTblLen),
		MaxMsgSize: a.MaxMsgSize, PKeyTblLen: int(a.PKeyTblLen), ActiveWidth: a.ActiveWidth,
		ActiveSpeed: a.ActiveSpeed, PhysState: a.PhysState, LinkLayer: a.LinkLayer, CapFlags: a.PortCapFlags,
		BadPKeyCntr: a.BadPKeyCntr, QKeyViolCntr: a.QKeyViolCntr,
	}, err
}

// GIDs returns the entries of the GID table that are in use.
func (c *Context) GIDs() ([]GIDEntry, error) {
	entries, err := list[abi.GIDEntry](context.Background(), c.client, "query GIDs", abi.OpQueryGIDs)
	if errors.Is(err, control.ErrClosed) {
		err = ErrClosed
	}
	gids := make([]GIDEntry, len(entries))
	for i, e := range entries {
		gids[i] = GIDEntry{int(e.Index), e.GID, abi.Text(e.Netdev[:]), int(e.VLAN)}
	}
	return gids, err
}

// PKeys returns the P_Key table, by index: ibv_query_pkey. 0 is an index without a key.
func (c *Context) PKeys() ([]uint16, error) {
	keys, err := list[uint16](context.Background(), c.client, "query P_Keys", abi.OpQueryPKeys)
	if errors.Is(err, control.ErrClosed) {
		err = ErrClosed
	}
	return keys, err
}

// QueryClock returns the NIC's present time on the clock of WC.Timestamp, and as WC.WallclockNS has it:
// ibv_query_rt_values_ex.
func (c *Context) QueryClock() (timestamp, wallclockNS uint64, err error) {
	var r abi.ClockReply
	_, err = c.call(control.Request{Name: "query clock", Op: abi.OpQueryClock, Reply: &r})
	return r.Clock, r.Wallclock, err
}

// adopted notes a new object, which Close will have to close, and returns it; where the
// Context was closed meanwhile the object goes at once.
func adopted[T closer](c *Context, o T) (T, error) {
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
func (c *Context) owns(o closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.children[o]
	return ok
}

// disown forgets an object; false where it was closed before.
func (c *Context) disown(o closer) bool {
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

// closeObject is Close of every object: the daemon first, then what this process holds.
// Where the daemon refuses (EBUSY: something uses the object), it stays.
func (c *Context) closeObject(o closer, name string, op uint16, handle uint32) error {
	if !c.owns(o) {
		return ErrClosed
	}
	if err := c.destroy(name, op, handle); err != nil && c.Err() == nil {
		return err
	}
	if !c.disown(o) {
		return ErrClosed
	}
	o.abandon()
	return nil
}

// AsyncEvent waits for the next asynchronous event: ibv_get_async_event. After
// EventDeviceFatal it fails with ErrDeviceFatal.
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
			continue // it was about an object that has been closed since
		}
		return ev, nil
	}
}

// Close closes the NIC and all that came from the Context: the memory of its Buffers
// is gone, too. Peers see what they would see if the process had ended. When Close
// returns, the NIC does not touch this process's memory any more.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.closed = true
	children := c.children
	c.children = map[closer]struct{}{}
	c.mu.Unlock()

	c.client.Shutdown()
	for o := range children {
		o.abandon()
	}
	c.events.close()
	unix.Close(c.doorbellFD)
	return unix.Munmap(c.doorbells)
}

// mapShared maps a ring or page of the daemon, which is that long.
func mapShared(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}
