// Rcops is a server and a client that perform every operation of a reliable connection and check
// every byte. It is an example of package verbs, and `make demo` runs it.
//
//	rcops -device softroce1 server           listens on -at, 127.0.0.1:18700
//	rcops -device softroce0 client           connects to -at, prints a line for each operation
//
// They exchange the addresses of their queue pairs and memory over TCP, as JSON. Both need a
// daemon: `softroce daemon` has the two NICs above.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"softroce/verbs"
)

// The first half of an endpoint's memory is sent and read by peers; the second half receives.
const (
	half  = 1 << 20
	limit = 20 * time.Second
)

func main() {
	socket := flag.String("socket", "", "the daemon's `path`; default $SOFTROCE_SOCKET, or the daemon that softroce finds")
	device := flag.String("device", "", "the NIC's `name`; default: the daemon's first")
	at := flag.String("at", "127.0.0.1:18700", "the server's `host:port`")
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var err error
	switch flag.Arg(0) {
	case "server":
		err = runServer(ctx, *socket, *device, *at)
	case "client":
		err = runClient(ctx, *socket, *device, *at)
	default:
		flag.Usage()
		err = fmt.Errorf("command %q, want server or client", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rcops:", err)
		os.Exit(1)
	}
}

// An endpoint is a connected queue pair and its memory.
type endpoint struct {
	nic  *verbs.Context
	mr   *verbs.MR
	sent *verbs.CQ // completions of send work requests
	got  *verbs.CQ // completions of receives
	qp   *verbs.QP
	out  []byte // sent, and read by the peer
	in   []byte // received
	peer hello

	messages int // sent by the client
}

// A hello describes an endpoint to its peer.
type hello struct {
	verbs.Info
	Addr uint64 // of the memory: out, then in
	RKey uint32
}

// open creates an endpoint that is not connected. Closing its NIC closes its objects.
func open(ctx context.Context, socket, device string) (*endpoint, error) {
	var opts []verbs.Option
	if socket != "" {
		opts = append(opts, verbs.WithSocket(socket))
	}
	nic, err := verbs.Open(ctx, device, opts...)
	if err != nil {
		return nil, err
	}
	e := &endpoint{nic: nic}
	if err := e.create(ctx); err != nil {
		nic.Close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) create(ctx context.Context) error {
	pd, err := e.nic.AllocPD(context.Background())
	if err != nil {
		return err
	}
	// The NIC maps memory of AllocBuffer, so it sends without a copy. Other memory can be
	// registered too.
	buf, err := e.nic.AllocBuffer(2 * half)
	if err != nil {
		return err
	}
	e.out, e.in = buf.Bytes()[:half], buf.Bytes()[half:2*half]
	e.mr, err = pd.RegMR(ctx, buf.Bytes()[:2*half], verbs.AccessLocalWrite|verbs.AccessRemoteWrite|
		verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	if err != nil {
		return err
	}
	if e.sent, err = e.nic.CreateCQ(ctx, 16, nil); err != nil {
		return err
	}
	if e.got, err = e.nic.CreateCQ(ctx, 16, nil); err != nil {
		return err
	}
	e.qp, err = pd.CreateQP(ctx, verbs.QPInitAttr{
		QPType: verbs.RC, SendCQ: e.sent, RecvCQ: e.got,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return err
}

// connect exchanges hellos over conn, connects the queue pairs and posts receives. It returns when
// the peer has posted receives too.
func (e *endpoint) connect(ctx context.Context, conn net.Conn, postReceives func() error) error {
	info, err := e.qp.Info(ctx, verbs.AnyGID)
	if err != nil {
		return err
	}
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := out.Encode(hello{info, e.mr.Addr(), e.mr.RKey()}); err != nil {
		return err
	}
	if err := in.Decode(&e.peer); err != nil {
		return fmt.Errorf("read the peer's hello: %w", err)
	}
	if err := e.qp.Connect(ctx, e.peer.Info, verbs.DefaultConnectOptions()); err != nil {
		return err
	}
	if err := postReceives(); err != nil {
		return err
	}
	if err := out.Encode("ready"); err != nil {
		return err
	}
	var ready string
	if err := in.Decode(&ready); err != nil || ready != "ready" {
		return fmt.Errorf("the peer is not ready: %q, %w", ready, err)
	}
	return nil
}

// complete waits for one completion.
func complete(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			return wc[0], err
		}
		if n == 1 {
			return wc[0], wc[0].Err()
		}
		if err := cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

// fill writes a pattern that depends on seed, and check verifies it.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ seed
	}
}

func check(b []byte, seed byte) error {
	for i := range b {
		if want := byte(i) ^ byte(i>>8)*31 ^ seed; b[i] != want {
			return fmt.Errorf("byte %d of %d is %#02x, want %#02x", i, len(b), b[i], want)
		}
	}
	return nil
}
