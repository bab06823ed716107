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

// DefaultPort is the TCP port of the conversation.
const DefaultPort = 18515

// Options are what the stock program's flags say. Zero values are not defaults:
// start from DefaultOptions.
type Options struct {
	Port     int
	Size     int // bytes of a message
	MTU      int // path MTU in bytes
	RxDepth  int // receives posted at a time
	Iters    int // messages each way
	SL       int // service level; nothing on RoCE
	GIDIndex int // verbs.AnyGID: by the addresses of the TCP connection and of the peer's GID
	Events   bool
	Check    bool // compare what comes with what was sent
}

// DefaultOptions returns the stock program's defaults.
func DefaultOptions() Options {
	return Options{Port: DefaultPort, Size: 4096, MTU: 1024, RxDepth: 500, Iters: 1000, GIDIndex: verbs.AnyGID}
}

// maxDepth and maxSize are what is certainly too much: a queue and a message of verbs.
const (
	maxDepth = 1 << 14
	maxSize  = 1 << 30
)

// Validate says which option is out of its range.
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

// Result is what a run has measured.
type Result struct {
	Local, Remote Dest
	Bytes         int64 // both ways
	Iters         int
	Elapsed       time.Duration
}

// ErrData: a message came with other bytes than were sent.
var ErrData = errors.New("wrong data")

// Serve waits on o.Port for one client and plays its peer on the NIC of c, as long as its daemon is
// there. What is worth telling goes to out, as the stock program writes it.
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

// Dial connects to a server on host and plays the client.
func Dial(ctx context.Context, host string, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(o.Port)))
	if err != nil {
		return Result{}, fmt.Errorf("no pingpong server: %w", err)
	}
	return DialConn(ctx, conn, c, o, out)
}

// Answer plays the server over an open connection, which it closes.
func ServeConn(ctx context.Context, conn net.Conn, c *verbs.Context, o Options, out io.Writer) (Result, error) {
	return runOver(ctx, conn, c, o, out, (*endpoint).exchangeAsServer)
}

// Ask plays the client over an open connection, which it closes.
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
		err = context.Cause(ctx) // what the closed connection said does not matter
	}
	return e.result, err
}

// exchangeAsServer: hear where the client is, connect, then say where we are. The client
// starts when it has heard that.
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

// exchangeAsClient: say where we are, hear where the server is, and that it is connected.
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
