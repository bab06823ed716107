package perf_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/internal/daemon"
	"softroce/internal/nicspec"
	"softroce/internal/perf"
	"softroce/verbs"
)

const testTimeout = 30 * time.Second

// nics opens the two NICs of a private daemon.
func nics(t *testing.T) (ctx context.Context, a, b *verbs.Context) {
	t.Helper()
	d, cleanup, err := daemon.StartPrivate("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cleanup)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	open := func(name string) *verbs.Context {
		c, err := verbs.Open(ctx, name, verbs.WithSocket(d.Socket()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	return ctx, open("softroce0"), open("softroce1")
}

func brief(op perf.Op) perf.Options {
	o := perf.DefaultOptions(op)
	o.Size, o.Duration, o.Latency = 4000, 50*time.Millisecond, 20*time.Millisecond
	return o
}

func TestEveryOperationIsMeasuredAndVerified(t *testing.T) {
	ctx, a, b := nics(t)
	for _, op := range []perf.Op{perf.Send, perf.Write, perf.Read, perf.Atomic} {
		for _, c := range []struct {
			name             string
			size, qps, depth int
			mtu              int
		}{
			{"one outstanding", 1, 1, 1, 0}, {"several QPs", 4000, 3, 16, 1024}, {"message of many packets", 1 << 20, 1, 8, 256},
		} {
			t.Run(string(op)+"/"+c.name, func(t *testing.T) {
				o := brief(op)
				o.Size, o.QPs, o.Depth, o.MTU = c.size, c.qps, c.depth, c.mtu
				r, err := perf.Between(ctx, a, b, verbs.AnyGID, o)
				if err != nil {
					t.Fatal(err)
				}
				l := r.Latency
				switch {
				case !r.Checked:
					t.Error("the data was not verified")
				case r.Messages == 0 || r.Bytes != r.Messages*uint64(r.Size) || r.Bandwidth <= 0 || r.MessageRate <= 0:
					t.Errorf("result %+v", r)
				case l == nil || l.Samples == 0 || l.Min <= 0 || l.P50 < l.Min || l.P99 < l.P50 || l.P999 < l.P99 || l.Max < l.P999:
					t.Errorf("latency %+v", l)
				}
			})
		}
	}
}

func TestResultIsTextAndJSON(t *testing.T) {
	ctx, a, b := nics(t)
	r, err := perf.Between(ctx, a, b, verbs.AnyGID, brief(perf.Write))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"write softroce0 (192.0.2.1) -> softroce1 (192.0.2.2)", "4000 bytes", "Gb/s", "p99.9"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text lacks %q:\n%s", want, text.String())
		}
	}
	b2, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bandwidth_gbps":`, `"messages_per_second":`, `"latency_us":{"samples":`, `"p99_9":`, `"data_checked":true`} {
		if !strings.Contains(string(b2), want) {
			t.Errorf("JSON lacks %s: %s", want, b2)
		}
	}
}

func TestServerServesClientsOverTCP(t *testing.T) {
	ctx, a, b := nics(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	s := perf.Server{Context: b, GIDIndex: verbs.AnyGID, Log: slog.New(slog.DiscardHandler)}
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l, false) }()
	port := l.Addr().(*net.TCPAddr).Port
	for range 2 {
		if _, err := perf.Dial(ctx, "127.0.0.1", port, a, verbs.AnyGID, brief(perf.Send)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("server: %v", err)
	}
}

func TestServerStopsWithDaemon(t *testing.T) {
	d, cleanup, err := daemon.StartPrivate("test")
	if err != nil {
		t.Fatal(err)
	}
	defer cleanup()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	c, err := verbs.Open(ctx, "", verbs.WithSocket(d.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := perf.Server{Context: c, GIDIndex: verbs.AnyGID, Log: slog.New(slog.DiscardHandler)}
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l, false) }()
	d.Close()
	if err := <-ended; !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("Serve: %v, want ErrDeviceFatal", err)
	}
}

func TestIPv6PeersUseIPv6GIDs(t *testing.T) {
	ctx, a, b := nics(t)
	r, err := perf.Between(ctx, a, b, 2, brief(perf.Write))
	if err != nil {
		t.Fatal(err)
	}
	if r.Local.GID != "2001:db8::1" || r.Remote.GID != "2001:db8::2" {
		t.Errorf("GIDs %s and %s", r.Local.GID, r.Remote.GID)
	}
}

func TestServerRejectsUnsupportedOptions(t *testing.T) {
	ctx, a, b := nics(t)
	s := perf.Server{Context: b, GIDIndex: 99, Log: slog.New(slog.DiscardHandler)}
	ours, theirs := net.Pipe()
	go s.ServeConn(ctx, theirs)
	if _, err := perf.Measure(ctx, ours, a, verbs.AnyGID, brief(perf.Write)); err == nil || !strings.Contains(err.Error(), "no GID at index 99") {
		t.Errorf("got %v", err)
	}
}

func TestOtherProtocolsAreRejected(t *testing.T) {
	ctx, a, b := nics(t)
	s := perf.Server{Context: b, GIDIndex: verbs.AnyGID, Log: slog.New(slog.DiscardHandler)}
	for _, message := range []string{"GET / HTTP/1.1\r\n\r\n", "{\"softroce_perf\": 7}\n", "[1,2]\n", strings.Repeat(" ", 8<<20)} {
		ours, theirs := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- s.ServeConn(ctx, theirs) }()
		go func() {
			ours.Write([]byte(message))
			b := make([]byte, 1000)
			ours.Read(b)
			ours.Close()
		}()
		if err := <-served; !errors.Is(err, perf.ErrPeer) {
			t.Errorf("server, %.20q: %v", message, err)
		}
	}
	ours, theirs := net.Pipe()
	go func() {
		b := make([]byte, 1<<16)
		theirs.Read(b)
		theirs.Write([]byte("SSH-2.0-OpenSSH\r\n"))
	}()
	if _, err := perf.Measure(ctx, ours, a, verbs.AnyGID, brief(perf.Write)); !errors.Is(err, perf.ErrPeer) {
		t.Errorf("client: %v", err)
	}
}

func TestCancelledContextEndsRun(t *testing.T) {
	ctx, a, b := nics(t)
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	o := brief(perf.Write)
	o.Duration = time.Minute
	start := time.Now()
	if _, err := perf.Between(ctx, a, b, verbs.AnyGID, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d >= o.Duration {
		t.Errorf("took %v", d)
	}
}

// Ctrl-C ends a measurement early. What was measured until then is verified and returned.
func TestInterruptedMeasurementReturnsWhatItHas(t *testing.T) {
	ctx, a, b := nics(t)
	for _, phase := range []string{"latency: ", "bandwidth: "} {
		interruptible, interrupt := context.WithCancel(ctx)
		o := brief(perf.Send)
		o.Duration, o.Latency, o.Progress = time.Minute, time.Minute, new(perf.Progress)
		if phase == "bandwidth: " {
			o.Latency = time.Millisecond
		}
		go func() {
			for !strings.HasPrefix(o.Progress.String(), phase) {
				time.Sleep(time.Millisecond)
			}
			interrupt()
		}()
		r, err := perf.Between(interruptible, a, b, verbs.AnyGID, o)
		if !errors.Is(err, context.Canceled) || r == nil {
			t.Fatalf("%s%+v, %v", phase, r, err)
		}
		var text strings.Builder
		r.WriteText(&text)
		want := "interrupted before the bandwidth was measured\n"
		if phase == "bandwidth: " {
			want = " s of the bandwidth\n"
		}
		if !r.Interrupted || !r.Checked || r.Latency == nil || (r.Messages > 0) != (phase == "bandwidth: ") || !strings.Contains(text.String(), want) {
			t.Errorf("%s%+v\n%s", phase, r, text.String())
		}
	}
}

func TestValidateNamesOptionOutOfRange(t *testing.T) {
	for _, c := range []struct {
		change func(*perf.Options)
		want   string
	}{
		{func(o *perf.Options) { o.Op = "jump" }, `"jump": want send, write, read or atomic`},
		{func(o *perf.Options) { o.Size = 0 }, "size 0: want 1 to"},
		{func(o *perf.Options) { o.QPs = -1 }, "qps -1"},
		{func(o *perf.Options) { o.Depth = 1 << 20 }, "depth 1048576"},
		{func(o *perf.Options) { o.Duration = 0 }, "duration 0s"},
		{func(o *perf.Options) { o.Latency = -1 }, "latency duration"},
		{func(o *perf.Options) { o.MTU = 1500 }, "mtu 1500: want 256, 512"},
	} {
		o := brief(perf.Write)
		c.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want …%s", err, c.want)
		}
	}
}

func TestPickNICsByNameOrInOrder(t *testing.T) {
	two := []verbs.DeviceInfo{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		nics                       []verbs.DeviceInfo
		from, to, fromName, toName string
	}{
		{two, "a", "b", "", ""}, {two, "b", "a", "b", ""}, {two, "b", "a", "", "a"}, {two, "a", "a", "a", "a"}, {two[:1], "a", "a", "", ""},
	} {
		if from, to, err := perf.PickNICs(c.nics, c.fromName, c.toName); err != nil || from != c.from || to != c.to {
			t.Errorf("%q to %q: picked %s and %s, %v", c.fromName, c.toName, from, to, err)
		}
	}
	if _, _, err := perf.PickNICs(two, "c", ""); err == nil || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("no NIC c: %v", err)
	}
}

func TestMeasureBetweenTwoDaemons(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	ports := freePorts(t)
	open := func(i int) *verbs.Context {
		n, err := nicspec.Parse(fmt.Sprintf("vm%d=dgram:127.0.0.1:%d,127.0.0.1:%d,10.9.0.%d/24,mtu=9000", i, ports[i], ports[1-i], i+1))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("", "srp")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		d, err := daemon.Start(daemon.Config{NICs: []nicspec.NIC{n}, Socket: filepath.Join(dir, "s")}, "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		c, err := verbs.Open(ctx, "", verbs.WithSocket(d.Socket()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	a, b := open(0), open(1)
	for _, op := range []perf.Op{perf.Send, perf.Write, perf.Read, perf.Atomic} {
		r, err := perf.Between(ctx, a, b, verbs.AnyGID, brief(op))
		if err != nil {
			t.Errorf("%s: %v", op, err)
		} else if !r.Checked || r.Latency == nil || r.MTU != 4096 || r.Remote.GID != "10.9.0.2" {
			t.Errorf("%s: %+v", op, r)
		}
	}
}

// freePorts returns two UDP ports that are currently unused.
func freePorts(t *testing.T) (ports [2]int) {
	t.Helper()
	for i := range ports {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ports[i] = c.LocalAddr().(*net.UDPAddr).Port
	}
	return ports
}

func TestUnreliableServicesCountReceivedMessages(t *testing.T) {
	ctx, a, b := nics(t)
	for _, c := range []struct {
		op        perf.Op
		kind      perf.Type
		size, qps int
	}{{perf.Send, perf.UC, 10000, 2}, {perf.Write, perf.UC, 1 << 16, 1}, {perf.Send, perf.UD, 1024, 2}} {
		o := brief(c.op)
		o.Type, o.Size, o.QPs = c.kind, c.size, c.qps
		r, err := perf.Between(ctx, a, b, verbs.AnyGID, o)
		if err != nil {
			t.Fatalf("%s %s: %v", c.kind, c.op, err)
		}
		if !r.Checked || r.Messages == 0 || r.Latency != nil {
			t.Errorf("%s %s: %+v", c.kind, c.op, r)
		}
		if c.op == perf.Send && (*r.Received == 0 || *r.Received > r.Sent || r.Sent < r.Messages) {
			t.Errorf("%s: received %d of %d", c.kind, *r.Received, r.Sent)
		}
	}
}

func TestValidateRejectsUnsupportedOperations(t *testing.T) {
	for _, o := range []perf.Options{
		{Op: perf.Read, Type: perf.UC}, {Op: perf.Atomic, Type: perf.UC}, {Op: perf.Write, Type: perf.UD}, {Op: perf.Send, Type: "xy"},
		{Op: perf.Send, Type: perf.UD, Size: 4097},
	} {
		o.Duration, o.QPs, o.Depth = time.Second, 1, 1
		if o.Size == 0 {
			o.Size = 1
		}
		if o.Validate() == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
