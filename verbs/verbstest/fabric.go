// Package verbstest gives a Go test NICs to use verbs on: two or more on a private
// fabric, in the test's own process, without a daemon, a network or privileges.
//
//	func TestEcho(t *testing.T) {
//		a, b := verbstest.Pair(t)
//		x, y := verbstest.ConnectedRC(t, a, b)
//		...
//	}
//
// When the test ends everything is taken down, and it fails if something of it stays
// behind. Options add faults to the fabric, record what it carried, and change the NICs.
package verbstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/internal/tempdir"
	"softroce/nic"
	"softroce/verbs"
	"softroce/wire"
	"softroce/wire/fault"
)

// MTU of the fabric's interfaces in bytes, unless WithMTU says otherwise: room for a path
// MTU of 4096.
const MTU = 9000

// Option changes what New makes.
type Option func(*config)

type config struct {
	nics    int
	engines int
	mtu     int
	spin    time.Duration
	limits  attach.Limits
	device  nic.Limits
	pkeys   map[int][]uint16
	faults  map[int]string
	sinks   map[int]wire.FrameSink
	wrap    []func(int, wire.Link) wire.Link
	leaks   bool
}

// WithNICs makes n NICs in place of two. They are called nic0, nic1 …, with the
// addresses 192.0.2.1 and 2001:db8::1, 192.0.2.2 and 2001:db8::2 …
func WithNICs(n int) Option { return func(c *config) { c.nics = n } }

// WithEngines shares the NICs between n engines; otherwise there is one.
func WithEngines(n int) Option { return func(c *config) { c.engines = n } }

// WithMTU sets the MTU of the fabric's interfaces. The largest path MTU is the largest power of
// two that is 80 bytes below.
func WithMTU(bytes int) Option { return func(c *config) { c.mtu = bytes } }

// WithSpin sets how long an idle engine spins before it sleeps, see nic.EngineConfig.
func WithSpin(d time.Duration) Option { return func(c *config) { c.spin = d } }

// WithLimits bounds what a client may hold.
func WithLimits(l attach.Limits) Option { return func(c *config) { c.limits = l } }

// WithDeviceLimits bounds what a NIC holds.
func WithDeviceLimits(l nic.Limits) Option { return func(c *config) { c.device = l } }

// WithPKeys gives a NIC, counted from 0, a P_Key table.
func WithPKeys(nic int, keys ...uint16) Option { return func(c *config) { c.pkeys[nic] = keys } }

// WithFaults puts a fault program (docs/reference/fault-language.md) on the link of one NIC, counted from 0.
func WithFaults(nic int, program string) Option {
	return func(c *config) { c.faults[nic] = program }
}

// WithCapture gives every frame on the cable of the first NIC, in both directions, to
// sink: for example a capture.Recorder, or a capture.Writer.
func WithCapture(sink wire.FrameSink) Option { return WithCaptureAt(0, sink) }

// WithCaptureAt is WithCapture for any NIC, counted from 0, which is the number of the
// interface that its frames get.
func WithCaptureAt(nic int, sink wire.FrameSink) Option {
	return func(c *config) { c.sinks[nic] = sink }
}

// WithLink wraps the links of NICs, counted from 0, in something of the test's own.
func WithLink(wrap func(nic int, inner wire.Link) wire.Link) Option {
	return func(c *config) { c.wrap = append(c.wrap, wrap) }
}

// WithoutLeakCheck leaves out the check for what stays behind, for tests that run beside others.
func WithoutLeakCheck() Option { return func(c *config) { c.leaks = false } }

// A Fabric is NICs that can reach each other, and the server that gives access to them.
type Fabric struct {
	Engines []*nic.Engine
	Devices []*nic.Device     // Devices[i] is nic<i>; use them in Engine.Do only
	Faults  []*wire.FaultLink // on the link of each NIC; SetProgram changes what it does
	Server  *attach.Server

	t      testing.TB
	socket string
	cancel context.CancelFunc
	runs   sync.WaitGroup
	closed sync.Once
}

// New makes a fabric.
func New(t testing.TB, opts ...Option) *Fabric {
	t.Helper()
	c := config{nics: 2, engines: 1, mtu: MTU, faults: map[int]string{}, pkeys: map[int][]uint16{}, sinks: map[int]wire.FrameSink{}, leaks: true}
	for _, o := range opts {
		o(&c)
	}
	if c.leaks {
		checkLeaks(t)
	}
	f := &Fabric{t: t}
	t.Cleanup(f.Close)
	if err := f.start(&c); err != nil {
		t.Fatalf("verbstest: %v", err)
	}
	return f
}

// Pair makes a fabric with two NICs and opens each of them.
func Pair(t testing.TB, opts ...Option) (a, b *verbs.Context) {
	t.Helper()
	f := New(t, opts...)
	return f.Open(0), f.Open(1)
}

func (f *Fabric) start(c *config) error {
	for range c.engines {
		e, err := nic.NewEngine(nic.EngineConfig{Spin: c.spin})
		if err != nil {
			return err
		}
		f.Engines = append(f.Engines, e)
	}
	cables := wire.NewFabric()
	for i := range c.nics {
		if err := f.addNIC(c, cables, i); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for _, e := range f.Engines {
		f.runs.Go(func() { e.Run(ctx) })
	}
	var err error
	f.Server, err = attach.NewServer(attach.Config{Engines: f.Engines, Limits: c.limits, Release: "verbstest"})
	return err
}

func (f *Fabric) addNIC(c *config, cables *wire.Fabric, i int) error {
	program, err := fault.Parse(strings.NewReader(c.faults[i]))
	if err != nil {
		return fmt.Errorf("faults of nic%d: %w", i, err)
	}
	e := f.Engines[i%len(f.Engines)]
	mac := [6]byte{0x02, 0, 0, 0, byte((i + 1) >> 8), byte(i + 1)}
	iface := wire.StaticInterface("", mac, c.mtu,
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte((i + 1) >> 8), 15: byte(i + 1)}), 64))
	port := cables.NewLink(e)
	port.Follow(iface)
	var link wire.Link = port
	if sink := c.sinks[i]; sink != nil {
		tap := wire.NewCaptureLink(link, nil, wire.CaptureOptions{MAC: iface.MAC})
		tap.Attach(sink, i)
		link = tap
	}
	for _, w := range c.wrap {
		link = w(i, link)
	}
	fault := wire.NewFaultLink(link, program)
	d, err := e.AddDevice(nic.DeviceConfig{Name: fmt.Sprintf("nic%d", i), Link: fault, Iface: iface, Limits: c.device, PKeys: c.pkeys[i]})
	if err != nil {
		return err
	}
	f.Faults, f.Devices = append(f.Faults, fault), append(f.Devices, d)
	return nil
}

// Open opens a NIC, counted from 0. The context is closed with the test, if it is not before.
func (f *Fabric) Open(i int) *verbs.Context {
	f.t.Helper()
	c, err := verbs.Open(context.Background(), fmt.Sprintf("nic%d", i), verbs.WithConn(f.Connect()))
	if err != nil {
		f.t.Fatalf("verbstest: open nic%d: %v", i, err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			f.t.Errorf("verbstest: close nic%d: %v", i, err)
		}
	})
	return c
}

// Connect returns a new connection to the server: for verbs.WithConn, and for tests that
// speak the attach ABI themselves.
func (f *Fabric) Connect() *net.UnixConn {
	f.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		f.t.Fatalf("verbstest: socketpair: %v", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(file)
		file.Close()
		if err != nil {
			f.t.Fatalf("verbstest: socketpair: %v", err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	if err := f.Server.ServeConn(ends[0]); err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
	return ends[1]
}

// Socket makes the server listen on a socket of the test, for other processes, and
// returns its path: give it to them in $SOFTROCE_SOCKET.
func (f *Fabric) Socket() string {
	f.t.Helper()
	if f.socket != "" {
		return f.socket
	}
	dir, err := os.MkdirTemp(tempdir.ForSocket(), "verbstest")
	if err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
	f.t.Cleanup(func() { os.RemoveAll(dir) })
	path, err := f.Server.Listen(attach.ListenConfig{Path: dir + "/sock"})
	if err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
	f.socket = path
	return path
}

// Close ends the server and the NICs before the test does: what a client sees when its
// daemon ends.
func (f *Fabric) Close() {
	f.closed.Do(func() {
		if f.Server != nil {
			if err := f.Server.Close(); err != nil {
				f.t.Errorf("verbstest: close: %v", err)
			}
		}
		if f.cancel != nil {
			f.cancel()
		}
		f.runs.Wait()
		for _, e := range f.Engines {
			if err := e.Close(); err != nil {
				f.t.Errorf("verbstest: close engine: %v", err)
			}
		}
	})
}
