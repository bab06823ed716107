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

// DefaultSocket is where the daemon listens unless $SOFTROCE_SOCKET says otherwise.
const DefaultSocket = "/run/softroce/softroce.sock"

// SocketEnv is the environment variable that names the socket.
const SocketEnv = "SOFTROCE_SOCKET"

// SocketPath returns the socket to use: path if it is not empty, else what the
// environment says, else DefaultSocket.
func SocketPath(path string) string {
	if path != "" {
		return path
	}
	if path = os.Getenv(SocketEnv); path != "" {
		return path
	}
	return DefaultSocket
}

// Errors of clients; match with errors.Is.
var (
	// ErrNoDaemon: nothing listens on the socket. The error of connect is there too.
	ErrNoDaemon = errors.New("no softroce daemon")

	// ErrVersion: the daemon speaks another version of the attach ABI.
	ErrVersion = errors.New("the daemon speaks another version of the attach ABI")

	// ErrGone: the daemon ended or closed the connection.
	ErrGone = errors.New("the connection to the daemon is gone")

	// ErrClosed: this process closed the connection, or the object.
	ErrClosed = errors.New("object or connection is closed")
)

// A Client asks the daemon. Its methods may be called from several goroutines.
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

// Dial connects to the daemon at path (see SocketPath) and shakes hands.
func Dial(ctx context.Context, path string) (*Client, error) {
	path = SocketPath(path)
	c, err := dial(ctx, path)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno
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

// CheckPath returns ENAMETOOLONG for a path that no socket can have: 107 bytes are the limit. Package net says EINVAL.
func CheckPath(path string) error {
	if len(path) >= tempdir.SocketPathSize {
		return syscall.ENAMETOOLONG
	}
	return nil
}

// NewClient shakes hands on a connected socket, which it then owns, also where it fails.
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

// A Request is one operation.
type Request struct {
	Name  string // for errors: "create QP"
	Op    uint16
	Body  []any // message structs
	FDs   []int // stay the caller's
	Reply any   // pointer to the message struct that the reply's body begins with, or nil
	Want  int   // descriptors that a good reply has
}

// Call sends a request and waits for its reply. The caller owns the descriptors that
// came with it; Body is what follows Reply. Where ctx ends first the operation goes on
// in the daemon, and what its reply brings is dropped. Where the reply came but this
// process has no room for its descriptors the error is EMFILE, and *Reply is set.
func (c *Client) Call(ctx context.Context, r Request) (Packet, error) {
	answer := make(chan Packet, 1)
	tag, err := c.expect(answer)
	if err != nil {
		return Packet{}, err
	}
	h := abi.Header{Version: abi.Version, Op: r.Op, Tag: tag, FDs: uint32(len(r.FDs))}
	if err := Write(c.conn, abi.Message(nil, h, r.Body...), r.FDs...); err != nil {
		if c.forget(tag) {
			return Packet{}, c.broken(err)
		}
	}
	select {
	case p := <-answer:
		return c.finish(r, p)
	case <-ctx.Done():
		if !c.forget(tag) {
			p := <-answer
			p.CloseFDs()
		}
		return Packet{}, fmt.Errorf("%s: %w", r.Name, ctx.Err())
	case <-c.done:
		select {
		case p := <-answer: // the reply was the last thing that came
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

func (c *Client) expect(answer chan Packet) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.tag++
	c.waiting[c.tag] = answer
	return c.tag, nil
}

func (c *Client) forget(tag uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.waiting[tag]
	delete(c.waiting, tag)
	return ok
}

// receive hands replies to those who wait, until the connection ends.
func (c *Client) receive() {
	buf := make([]byte, abi.MaxMessage)
	for {
		p, err := Read(c.conn, buf)
		if errors.Is(err, unix.ECONNRESET) {
			// The daemon closed the socket without having read all that we sent. The kernel
			// says so once, before what the daemon had sent, which may be the reason.
			p, err = Read(c.conn, buf)
		}
		if err != nil {
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
		answer := c.waiting[p.Header.Tag]
		delete(c.waiting, p.Header.Tag)
		if answer != nil {
			answer <- p // has room: one reply to a tag
		}
		c.mu.Unlock()
		if answer == nil {
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

// broken is the error of a request that could not be sent.
func (c *Client) broken(err error) error {
	if e := c.Err(); e != nil {
		return e
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		<-c.done // the reason may still be on its way
		return c.Err()
	}
	return fmt.Errorf("send to the daemon: %w", err)
}

// Done is closed when the connection has ended, from either side.
func (c *Client) Done() <-chan struct{} { return c.done }

// Ended reports, without a lock, whether the connection has ended.
func (c *Client) Ended() bool { return c.ended.Load() }

// Err tells why the connection ended: ErrClosed, or ErrGone with the daemon's reason; nil before.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits until nothing of it runs on this side.
func (c *Client) Close() error {
	c.leave()
	c.conn.Close()
	<-c.done
	return nil
}

// Shutdown is Close that waits, however long, until the daemon has let go of all that
// the connection had there.
func (c *Client) Shutdown() error {
	c.leave()
	err := c.conn.CloseWrite() // the daemon closes its end when it has cleaned up
	if err != nil {
		c.conn.Close()
	}
	<-c.done
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = ErrClosed
	}
	c.ended.Store(true)
}
