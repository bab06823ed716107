// Rcops is a server and a client that carry out every operation of a reliable connection
// and check every byte: an example of package verbs, and what `make demo` runs.
//
//	rcops -device softroce1 server           waits at -at, 127.0.0.1:18700
//	rcops -device softroce0 client           connects to -at, prints a line an operation
//
// The two tell each other over TCP where their queue pairs and memories are, in a line of
// JSON. Both need a daemon: `softroce daemon` has the two NICs named above.
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

// Half of an endpoint's memory is what it sends from and what peers read; the other half
// is where data arrives.
const (
	half  = 1 << 20
	limit = 20 * time.Second
)

func main() {
	socket := flag.String("socket", "", "the daemon's `path`; default $SOFTROCE_SOCKET or /run/softroce/softroce.sock")
	device := flag.String("device", "", "the NIC's `name`; default: the daemon's first")
	at := flag.String("at", "127.0.0.1:18700", "where the server listens: `host:port`")
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
		err = fmt.Errorf("say server or client")
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
	sent *verbs.CQ // completions of our work requests
	got  *verbs.CQ // and of receives
	qp   *verbs.QP
	out  []byte // ours to send and to be read
	in   []byte // where data arrives
	peer hello

	messages int // that the client has sent
}

// A hello is what an endpoint tells its peer.
type hello struct {
	verbs.Info
	Addr uint64 // of the memory, out before in
	RKey uint32
}

// open makes an endpoint that is not connected yet. Everything that it makes goes when
// its NIC is closed.
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
	if err := e.make(); err != nil {
		nic.Close()
		return nil, err
	}
	return e, nil
}

func (e *endpoint) make() error {
	pd, err := e.nic.AllocPD(context.Background())
	if err != nil {
		return err
	}
	// Memory from AllocBuffer is shared with the NIC, which then copies nothing on the
	// sending side. Any other memory can be registered as well.
	buf, err := e.nic.AllocBuffer(2 * half)
	if err != nil {
		return err
	}
	e.out, e.in = buf.Bytes()[:half], buf.Bytes()[half:2*half]
	e.mr, err = pd.RegMR(context.Background(), buf.Bytes()[:2*half], verbs.AccessLocalWrite|verbs.AccessRemoteWrite|
		verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	if err != nil {
		return err
	}
	if e.sent, err = e.nic.CreateCQ(context.Background(), 16, nil); err != nil {
		return err
	}
	if e.got, err = e.nic.CreateCQ(context.Background(), 16, nil); err != nil {
		return err
	}
	e.qp, err = pd.CreateQP(context.Background(), verbs.QPInitAttr{
		QPType: verbs.RC, SendCQ: e.sent, RecvCQ: e.got,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return err
}

// meet exchanges hellos over conn, connects the queue pair to the peer's and lets receives
// be posted, which a queue pair takes from state INIT on. It returns when the peer has
// come as far: what is sent from then on finds a receive.
func (e *endpoint) meet(ctx context.Context, conn net.Conn, postReceives func() error) error {
	info, err := e.qp.Info(ctx, verbs.AnyGID)
	if err != nil {
		return err
	}
	tell, hear := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := tell.Encode(hello{info, e.mr.Addr(), e.mr.RKey()}); err != nil {
		return err
	}
	if err := hear.Decode(&e.peer); err != nil {
		return fmt.Errorf("the peer's hello: %w", err)
	}
	if err := e.qp.Connect(ctx, e.peer.Info, verbs.DefaultConnectOptions()); err != nil {
		return err
	}
	if err := postReceives(); err != nil {
		return err
	}
	if err := tell.Encode("ready"); err != nil {
		return err
	}
	var ready string
	if err := hear.Decode(&ready); err != nil || ready != "ready" {
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

// fill writes a pattern that no other seed gives, and check looks for it.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ seed
	}
}

func check(b []byte, seed byte) error {
	for i := range b {
		if want := byte(i) ^ byte(i>>8)*31 ^ seed; b[i] != want {
			return fmt.Errorf("byte %d of %d is %#02x, not %#02x", i, len(b), b[i], want)
		}
	}
	return nil
}
