package rdmacm

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// An Option changes how Open reaches the daemon.
type Option func(*options)

type options struct {
	socket string
	conn   *net.UnixConn
	device string
}

// WithSocket names the daemon's socket. The default is $SOFTROCE_SOCKET, or else that of the daemon
// which the commands of softroce find: /run/softroce/softroce.sock, or a socket of this user.
func WithSocket(path string) Option { return func(o *options) { o.socket = path } }

// WithConn uses a connected seqpacket socket. Open takes ownership of it, also if it fails.
func WithConn(c *net.UnixConn) Option { return func(o *options) { o.conn = c } }

// WithDevice restricts the Manager to one NIC.
func WithDevice(name string) Option { return func(o *options) { o.device = name } }

// A Manager is a connection to the daemon's connection manager.
type Manager struct {
	client *control.Client

	mu  sync.Mutex
	ids map[uint32]*ID // by handle
}

// Open connects to the connection manager. Errors are those of verbs.Open.
func Open(ctx context.Context, opts ...Option) (*Manager, error) {
	var o options
	for _, f := range opts {
		f(&o)
	}
	client, err := dial(ctx, &o)
	if err != nil {
		return nil, err
	}
	m := &Manager{client: client, ids: map[uint32]*ID{}}
	var req abi.CMOpenRequest
	abi.PutText(req.Device[:], o.device)
	if err := m.call(ctx, "open connection manager", abi.OpCMOpen, nil, req); err != nil {
		client.Close()
		return nil, err
	}
	return m, nil
}

func dial(ctx context.Context, o *options) (*control.Client, error) {
	if o.conn != nil {
		return control.NewClient(ctx, o.conn)
	}
	return control.Dial(ctx, o.socket)
}

// closeTimeout bounds how long Close waits for the daemon.
const closeTimeout = 10 * time.Second

// Close ends all connections and listeners of the Manager. It waits at most ten seconds for the
// daemon to do so.
func (m *Manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return control.AwaitError(ctx, "close connection manager", m.client.Shutdown)
}

// request sends a request to the daemon and waits for the reply, however long that takes.
func (m *Manager) request(r control.Request) (control.Packet, error) {
	p, err := m.client.Call(context.Background(), r)
	if e, ok := err.(*control.Error); ok {
		err = (*verbs.Error)(e)
	}
	return p, err
}

// call performs an operation whose reply has no descriptors. The reply may be read only if the
// error is nil.
func (m *Manager) call(ctx context.Context, name string, op uint16, reply any, body ...any) error {
	return control.AwaitError(ctx, name, func() error {
		_, err := m.request(control.Request{Name: name, Op: op, Body: body, Reply: reply})
		return err
	})
}

// An EventChannel queues the events of identifiers: rdma_event_channel.
type EventChannel struct {
	manager *Manager
	handle  uint32

	socket   *control.EventSocket
	fetching chan fetch // the request of GetEvent that is outstanding, or nil; for the reader of socket
}

// CreateEventChannel creates an event channel: rdma_create_event_channel.
func (m *Manager) CreateEventChannel(ctx context.Context) (*EventChannel, error) {
	const name = "create event channel"
	return control.Await(ctx, name, func() (*EventChannel, error) {
		var got abi.HandleReply
		p, err := m.request(control.Request{Name: name, Op: abi.OpCMCreateChannel, Reply: &got, Want: 1})
		if err != nil {
			return nil, err
		}
		return &EventChannel{manager: m, handle: got.Handle, socket: control.NewEventSocket(m.client, p.Take())}, nil
	}, func(ch *EventChannel) { ch.Close(context.Background()) })
}

// Close destroys the channel: rdma_destroy_event_channel. EBUSY while identifiers use it.
func (ch *EventChannel) Close(ctx context.Context) error {
	const name = "destroy event channel"
	return control.AwaitError(ctx, name, func() error {
		_, err := ch.manager.request(control.Request{
			Name: name, Op: abi.OpCMDestroyChannel, Body: []any{abi.HandleRequest{Handle: ch.handle}},
		})
		if err == nil || ch.manager.client.Ended() {
			ch.socket.Close()
		}
		return err
	})
}

var errOtherManager error = &verbs.Error{Op: "event channel", Errno: syscall.EINVAL, Text: "it is of another Manager"}
