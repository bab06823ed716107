package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"softroce/internal/rendezvous"
	"softroce/verbs"
)

// DefaultPort is the TCP port of the stock program.
const DefaultPort = 18515

// Options correspond to the flags of the stock program. Zero values are not defaults: start from
// DefaultOptions.
type Options struct {
	Port     int
	Size     int // message size in bytes
	MTU      int // path MTU in bytes
	RxDepth  int // receives to post
	Iters    int // messages in each direction
	SL       int // service level; ignored on RoCE
	GIDIndex int // verbs.AnyGID: chosen from the addresses of the TCP connection and of the peer's GID
	Events   bool
	Check    bool // verify the data of each message
}

// DefaultOptions returns the stock program's defaults.
func DefaultOptions() Options {
	return Options{Port: DefaultPort, Size: 4096, MTU: 1024, RxDepth: 500, Iters: 1000, GIDIndex: verbs.AnyGID}
}

// maxDepth and maxSize are upper bounds of a verbs queue and a verbs message.
const (
	maxDepth = 1 << 14
	maxSize  = 1 << 30
)

// Validate returns an error that names the first option out of range.
func (o *Options) Validate() error {
	for _, c := range []struct {
		name        string
		v, low, top int
	}{
		{"port", o.Port, 0, 65535}, {"size", o.Size, 1, maxSize}, {"rx-depth", o.RxDepth, 1, maxDepth},
		{"iters", o.Iters, 1, 1 << 31}, {"sl", o.SL, 0, 15}, {"gid-idx", o.GIDIndex, verbs.AnyGID, 255},
	} {
		if c.v < c.low || c.v > c.top {
			return fmt.Errorf("%s %d: want %d to %d", c.name, c.v, c.low, c.top)
		}
	}
	if _, ok := verbs.ParseMTU(o.MTU); !ok {
		return fmt.Errorf("mtu %d: want 256, 512, 1024, 2048 or 4096", o.MTU)
	}
	return nil
}

// Result is the result of a run.
type Result struct {
	Local, Remote Dest
	Bytes         int64 // of both directions
	Iters         int
	Elapsed       time.Duration
}

// ErrData is returned if a message differs from what was sent.
var ErrData = errors.New("wrong data")

// Serve waits on o.Port for one client and runs the server on the NIC of c. It stops when the
// daemon of c stops. Output in the format of the stock program goes to out.
func Serve(ctx context.Context, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	ctx, release := c.WhileServed(ctx)
	defer release()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(o.Port))
	if err != nil {
		return Result{}, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Result{}, err
	}
	l.Close()
	return ServeConn(ctx, conn, c, o, out)
}

// Dial connects to a server on host and runs the client.
func Dial(ctx context.Context, host string, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(o.Port)))
	if err != nil {
		return Result{}, fmt.Errorf("no pingpong server: %w", err)
	}
	return DialConn(ctx, conn, c, o, out)
}

// ServeConn runs the server over an open connection, and closes it.
func ServeConn(ctx context.Context, conn net.Conn, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	return runOver(ctx, conn, c, o, out, (*endpoint).exchangeAsServer)
}

// DialConn runs the client over an open connection, and closes it.
func DialConn(ctx context.Context, conn net.Conn, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	return runOver(ctx, conn, c, o, out, (*endpoint).exchangeAsClient)
}

func runOver(ctx context.Context, conn net.Conn, c *verbs.Context, o Options, out io.Writer, exchange func(*endpoint, net.Conn) error) (Result, error) {
	defer conn.Close()
	ctx, release := c.WhileServed(ctx)
	defer release()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	e := &endpoint{ctx: ctx, o: o, out: out}
	defer e.close()
	err := e.open(c)
	if err == nil {
		err = exchange(e, conn)
	}
	if err == nil {
		err = e.run()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // replaces the error of the closed connection
	}
	return e.result, err
}

// exchangeAsServer reads the client's address, connects, then sends its own address. The client
// starts when it has received it.
func (e *endpoint) exchangeAsServer(conn net.Conn) error {
	remote, err := readDest(conn)
	if err != nil {
		return err
	}
	e.server = true
	if err := e.chooseGID(rendezvous.LocalAddr(conn), remote.GID.Addr()); err != nil {
		return err
	}
	if err := e.connect(remote); err != nil {
		return err
	}
	if _, err := conn.Write(e.result.Local.encode()); err != nil {
		return err
	}
	return readDone(conn)
}

// exchangeAsClient sends its address, reads the server's, connects, and confirms that it is
// connected.
func (e *endpoint) exchangeAsClient(conn net.Conn) error {
	if err := e.chooseGID(rendezvous.LocalAddr(conn), netip.Addr{}); err != nil {
		return err
	}
	if _, err := conn.Write(e.result.Local.encode()); err != nil {
		return err
	}
	remote, err := readDest(conn)
	if err != nil {
		return err
	}
	if err := e.connect(remote); err != nil {
		return err
	}
	_, err = io.WriteString(conn, done)
	return err
}
