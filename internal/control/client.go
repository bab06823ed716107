package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/tempdir"
)

// DefaultSocket is the daemon's socket unless $SOFTROCE_SOCKET names another.
const DefaultSocket = "/run/softroce/softroce.sock"

// SocketEnv is the environment variable that names the socket.
const SocketEnv = "SOFTROCE_SOCKET"

// SocketPath returns path if it is not empty, or else $SOFTROCE_SOCKET, or else DefaultSocket.
func SocketPath(path string) string {
	if path != "" {
		return path
	}
	if path = os.Getenv(SocketEnv); path != "" {
		return path
	}
	return DefaultSocket
}

// Errors of clients, to match with errors.Is.
var (
	// ErrNoDaemon: no process listens on the socket. The error wraps that of connect.
	ErrNoDaemon = errors.New("no softroce daemon")

	// ErrVersion: the daemon has another version of the attach ABI.
	ErrVersion = errors.New("the daemon has another version of the attach ABI")

	// ErrGone: the daemon ended, or closed the connection.
	ErrGone = errors.New("the connection to the daemon is gone")

	// ErrClosed: this process closed the connection or the object.
	ErrClosed = errors.New("object or connection is closed")
)

// A Client sends requests to the daemon. Its methods may be called from any goroutine.
type Client struct {
	Hello abi.HelloReply

	conn *net.UnixConn
	done chan struct{} // closed when the connection has ended

	ended atomic.Bool

	mu      sync.Mutex
	tag     uint64
	waiting map[uint64]chan Packet
	err     error // why the connection ended
	reason  string
}

// Dial connects to the daemon that path or $SOFTROCE_SOCKET names, or else to the one that Find
// finds.
func Dial(ctx context.Context, path string) (*Client, error) {
	if path = Named(path); path != "" {
		return dialPath(ctx, path)
	}
	f, err := Find(ctx, "")
	if err != nil {
		return nil, err
	}
	return f.Client, nil
}

// dialPath connects to the daemon at path and exchanges hello messages.
func dialPath(ctx context.Context, path string) (*Client, error) {
	c, err := dial(ctx, path)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) && errno != syscall.ENAMETOOLONG {
			err = errno // without the path, which the text below has
		}
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w on %s: %w", ErrNoDaemon, path, err)
		}
		return nil, fmt.Errorf("connect to the softroce daemon on %s: %w", path, err)
	}
	return NewClient(ctx, c.(*net.UnixConn))
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unixpacket", path)
}

// CheckPath returns an error that matches ENAMETOOLONG for a path that does not fit sun_path.
// Package net returns EINVAL for it.
func CheckPath(path string) error {
	if len(path) >= tempdir.SocketPathSize {
		return fmt.Errorf("%w for a socket: %d bytes, of at most %d", syscall.ENAMETOOLONG, len(path), tempdir.SocketPathSize-1)
	}
	return nil
}

// NewClient exchanges hello messages on a connected socket. It owns the socket, even if it fails.
func NewClient(ctx context.Context, conn *net.UnixConn) (*Client, error) {
	c := &Client{conn: conn, done: make(chan struct{}), waiting: map[uint64]chan Packet{}}
	go c.receive()
	var hello abi.HelloRequest
	abi.PutText(hello.Comm[:], filepath.Base(os.Args[0]))
	if _, err := c.Call(ctx, Request{Name: "hello", Op: abi.OpHello, Body: []any{hello}, Reply: &c.Hello}); err != nil {
		c.Close()
		if errors.Is(err, syscall.EPROTONOSUPPORT) {
			return nil, fmt.Errorf("%w: %w", ErrVersion, err)
		}
		return nil, err
	}
	return c, nil
}

// A Request is a request to the daemon.
type Request struct {
	Name  string // for errors: "create QP"
	Op    uint16
	Body  []any // message structs
	FDs   []int // the caller keeps them
	Reply any   // pointer to the message struct at the start of the reply's body, or nil
	Want  int   // descriptors in a successful reply
}

// Call sends a request and waits for its reply. The caller owns the reply's descriptors. Its Body
// is what follows Reply. If ctx ends first, the daemon still completes the operation, and the reply
// is discarded. If this process cannot receive all descriptors, the error is EMFILE, and *Reply is
// set.
func (c *Client) Call(ctx context.Context, r Request) (Packet, error) {
	reply := make(chan Packet, 1)
	tag, err := c.expect(reply)
	if err != nil {
		return Packet{}, err
	}
	h := abi.Header{Version: abi.Version, Op: r.Op, Tag: tag, FDs: uint32(len(r.FDs))}
	if err := Write(c.conn, abi.Message(nil, h, r.Body...), r.FDs...); err != nil {
		if c.cancel(tag) {
			return Packet{}, c.broken(err)
		}
	}
	select {
	case p := <-reply:
		return c.finish(r, p)
	case <-ctx.Done():
		if !c.cancel(tag) {
			p := <-reply
			p.CloseFDs()
		}
		return Packet{}, fmt.Errorf("%s: %w", r.Name, ctx.Err())
	case <-c.done:
		select {
		case p := <-reply: // the reply was the last message
			return c.finish(r, p)
		default:
			return Packet{}, c.Err()
		}
	}
}

func (c *Client) finish(r Request, p Packet) (Packet, error) {
	if p.Header.Errno != 0 {
		p.CloseFDs()
		return Packet{}, &Error{Op: r.Name, Errno: syscall.Errno(p.Header.Errno), Text: string(p.Body)}
	}
	if r.Reply != nil {
		rest, err := abi.Decode(p.Body, r.Reply)
		if err != nil {
			p.CloseFDs()
			return Packet{}, fmt.Errorf("%s: reply: %w", r.Name, err)
		}
		p.Body = rest
	}
	if n := len(p.FDs); n != r.Want {
		p.CloseFDs()
		return Packet{}, &Error{Op: r.Name, Errno: syscall.EMFILE,
			Text: fmt.Sprintf("no room for the descriptors of the reply: got %d of %d", n, r.Want)}
	}
	return p, nil
}

func (c *Client) expect(reply chan Packet) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.tag++
	c.waiting[c.tag] = reply
	return c.tag, nil
}

func (c *Client) cancel(tag uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.waiting[tag]
	delete(c.waiting, tag)
	return ok
}

// receive passes replies to the waiting calls, until the connection ends.
func (c *Client) receive() {
	buf := make([]byte, abi.MaxMessage)
	for {
		p, err := Read(c.conn, buf)
		if errors.Is(err, unix.ECONNRESET) {
			// The daemon closed the socket before it read all requests. The kernel reports that
			// once, before the messages that the daemon sent, one of which may have the reason.
			p, err = Read(c.conn, buf)
		}
		if err != nil {
			p.CloseFDs()
			c.end(err)
			return
		}
		p.Body = append([]byte(nil), p.Body...)
		if p.Header.Op == abi.OpGoodbye {
			c.mu.Lock()
			c.reason = string(p.Body)
			c.mu.Unlock()
		}
		c.mu.Lock()
		reply := c.waiting[p.Header.Tag]
		delete(c.waiting, p.Header.Tag)
		if reply != nil {
			reply <- p // does not block: the channel has room for the only reply
		}
		c.mu.Unlock()
		if reply == nil {
			p.CloseFDs()
		}
	}
}

func (c *Client) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = ErrGone
		if c.reason != "" {
			c.err = fmt.Errorf("%w: %s", ErrGone, c.reason)
		}
	}
	c.ended.Store(true)
	c.conn.Close()
	close(c.done)
}

// broken returns the error of a request that could not be sent.
func (c *Client) broken(err error) error {
	if e := c.Err(); e != nil {
		return e
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		<-c.done // the goodbye may still be on its way
		return c.Err()
	}
	return fmt.Errorf("send to the daemon: %w", err)
}

// Done is closed when the connection has ended, from either side.
func (c *Client) Done() <-chan struct{} { return c.done }

// Ended reports, without a lock, whether the connection has ended.
func (c *Client) Ended() bool { return c.ended.Load() }

// Err returns why the connection ended: ErrClosed, or ErrGone with the daemon's reason; nil before
// the end.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the client's goroutine.
func (c *Client) Close() error {
	c.markClosed()
	c.conn.Close()
	<-c.done
	return nil
}

// Shutdown is Close that also waits until the daemon has destroyed the connection's objects.
func (c *Client) Shutdown() error {
	c.markClosed()
	err := c.conn.CloseWrite() // the daemon closes its end after its cleanup
	if err != nil {
		c.conn.Close()
	}
	<-c.done
	return nil
}

func (c *Client) markClosed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = ErrClosed
	}
	c.ended.Store(true)
}
