package pingpong_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softroce/internal/daemon"
	"softroce/internal/pingpong"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

const testTimeout = 30 * time.Second

// nics returns two NICs on a fabric.
func nics(t *testing.T) (ctx context.Context, a, b *verbs.Context) {
	t.Helper()
	a, b = verbstest.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx, a, b
}

// results are the results of a run at both ends.
type results struct {
	server, client       pingpong.Result
	serverErr, clientErr error
	text                 string // output of the server
}

// runOver runs the server with options so and the client with options co.
func runOver(ctx context.Context, server, client *verbs.Context, so, co pingpong.Options) (e results) {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	var out strings.Builder
	go func() {
		defer close(done)
		e.server, e.serverErr = pingpong.ServeConn(ctx, theirs, server, so, &out)
	}()
	e.client, e.clientErr = pingpong.DialConn(ctx, ours, client, co, io.Discard)
	<-done
	e.text = out.String()
	return e
}

func TestServerAndClientExchangeMessages(t *testing.T) {
	ctx, a, b := nics(t)
	for _, c := range []struct {
		name   string
		change func(*pingpong.Options)
	}{
		{"defaults", func(*pingpong.Options) {}},
		{"checked", func(o *pingpong.Options) { o.Check = true }},
		{"checked, one byte", func(o *pingpong.Options) { o.Check, o.Size = true, 1 }},
		{"checked, long", func(o *pingpong.Options) { o.Check, o.Size, o.MTU = true, 100001, 256 }},
		{"events", func(o *pingpong.Options) { o.Events = true }},
		{"few receives", func(o *pingpong.Options) { o.RxDepth = 1 }},
		{"IPv6", func(o *pingpong.Options) { o.GIDIndex = 2 }},
		{"link-local", func(o *pingpong.Options) { o.GIDIndex = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := pingpong.DefaultOptions()
			o.Iters = 100
			c.change(&o)
			e := runOver(ctx, a, b, o, o)
			if e.serverErr != nil || e.clientErr != nil {
				t.Fatalf("server: %v, client: %v", e.serverErr, e.clientErr)
			}
			s, cl, text := e.server, e.client, e.text
			if s.Local != cl.Remote || s.Remote != cl.Local {
				t.Errorf("the results disagree: %+v, %+v", s, cl)
			}
			if s.Iters != 100 || s.Bytes != int64(o.Size)*200 || s.Elapsed <= 0 {
				t.Errorf("result %+v", s)
			}
			for _, want := range []string{"  local address:  LID 0x0000, QPN 0x", "  remote address: LID 0x0000", "100 iters in "} {
				if !strings.Contains(text, want) {
					t.Errorf("output lacks %q:\n%s", want, text)
				}
			}
		})
	}
}

// While a server waits for a client on TCP, it must still notice that the daemon stops.
func TestWaitingEndpointStopsWithDaemon(t *testing.T) {
	for _, c := range []struct {
		name string
		wait func(context.Context, *verbs.Context, pingpong.Options) error
	}{
		{"to connect", func(ctx context.Context, c *verbs.Context, o pingpong.Options) error {
			_, err := pingpong.Serve(ctx, c, o, io.Discard)
			return err
		}},
		{"to send its address", func(ctx context.Context, c *verbs.Context, o pingpong.Options) error {
			ours, theirs := net.Pipe()
			defer ours.Close()
			_, err := pingpong.ServeConn(ctx, theirs, c, o, io.Discard)
			return err
		}},
		{"to reply", func(ctx context.Context, c *verbs.Context, o pingpong.Options) error {
			ours, theirs := net.Pipe()
			defer ours.Close()
			go io.Copy(io.Discard, ours)
			_, err := pingpong.DialConn(ctx, theirs, c, o, io.Discard)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, cleanup, err := daemon.StartPrivate("test")
			if err != nil {
				t.Fatal(err)
			}
			defer cleanup()
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			nic, err := verbs.Open(ctx, "", verbs.WithSocket(d.Socket()))
			if err != nil {
				t.Fatal(err)
			}
			defer nic.Close()
			o := pingpong.DefaultOptions()
			o.Port, o.GIDIndex = 0, 1
			ended := make(chan error)
			go func() { ended <- c.wait(ctx, nic, o) }()
			d.Close()
			if err := <-ended; !errors.Is(err, verbs.ErrDeviceFatal) {
				t.Errorf("got %v, want ErrDeviceFatal", err)
			}
		})
	}
}

func TestServerUsesGIDOfClientFamily(t *testing.T) {
	ctx, a, b := nics(t)
	so, co := pingpong.DefaultOptions(), pingpong.DefaultOptions()
	so.Iters, co.Iters, co.GIDIndex = 10, 10, 2
	e := runOver(ctx, a, b, so, co)
	if e.serverErr != nil || e.clientErr != nil {
		t.Fatalf("server: %v, client: %v", e.serverErr, e.clientErr)
	}
	if got := e.server.Local.GID.Addr().String(); got != "2001:db8::1" {
		t.Errorf("server uses GID %s", got)
	}
}

func TestSizeMismatchIsReported(t *testing.T) {
	ctx, a, b := nics(t)
	so, co := pingpong.DefaultOptions(), pingpong.DefaultOptions()
	co.Size = 100
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	until, stop := context.WithCancel(ctx)
	go func() {
		_, err := pingpong.ServeConn(ctx, theirs, a, so, io.Discard)
		served <- err
		stop() // the client waits for a reply that never arrives
	}()
	pingpong.DialConn(until, ours, b, co, io.Discard)
	if err := <-served; !errors.Is(err, pingpong.ErrData) {
		t.Errorf("server: %v", err)
	}
}

// TestStockClientIsServed imitates the client of ibv_rc_pingpong -c: its messages over TCP, their
// order, and the RDMA message that it sends.
func TestStockClientIsServed(t *testing.T) {
	ctx, a, b := nics(t)
	o := pingpong.DefaultOptions()
	o.Iters, o.Check = 3, true
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() {
		_, err := pingpong.ServeConn(ctx, theirs, a, o, io.Discard)
		served <- err
	}()

	stock := newStock(t, b)
	fmt.Fprintf(ours, "%04x:%06x:%06x:%s\x00", 0, stock.info.QPN, stock.info.PSN, stock.wireGID())
	var msg [52]byte
	if _, err := io.ReadFull(ours, msg[:]); err != nil {
		t.Fatal(err)
	}
	if msg[51] != 0 || msg[4] != ':' || msg[11] != ':' || msg[18] != ':' {
		t.Fatalf("server sent %q", msg)
	}
	if _, err := io.WriteString(ours, "done\x00"); err != nil {
		t.Fatal(err)
	}
	stock.connect(ctx, string(msg[:51]))
	for range o.Iters {
		stock.pingpong(ctx)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestValidateNamesOptionOutOfRange(t *testing.T) {
	for _, c := range []struct {
		change func(*pingpong.Options)
		want   string
	}{
		{func(o *pingpong.Options) { o.MTU = 1500 }, "mtu 1500: want 256"},
		{func(o *pingpong.Options) { o.Size = 0 }, "size 0"},
		{func(o *pingpong.Options) { o.Iters = 0 }, "iters 0"},
		{func(o *pingpong.Options) { o.RxDepth = 0 }, "rx-depth 0"},
		{func(o *pingpong.Options) { o.Port = 70000 }, "port 70000"},
		{func(o *pingpong.Options) { o.SL = 16 }, "sl 16"},
	} {
		o := pingpong.DefaultOptions()
		c.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want …%s", err, c.want)
		}
	}
}
