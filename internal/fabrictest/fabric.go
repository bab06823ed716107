// Package fabrictest runs an attach server with NICs on a private fabric in the process of a test,
// in real time.
// It gives tests of this module access to the engines, the links and the server; package
// verbs/verbstest offers the same NICs to users through the public API.
package fabrictest

import (
	"context"
	"errors"
	"flag"
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
	"softroce/capture"
	"softroce/internal/persona"
	"softroce/internal/tempdir"
	"softroce/nic"
	"softroce/verbs"
	"softroce/wire"
	"softroce/wire/fault"
)

// slices lets all tests on a fabric run with NICs that several engines drive.
var slices = flag.Int("fabric.slices", 1, "engines for each NIC of a test that does not choose")

// MTU is the default MTU of the fabric's interfaces in bytes: room for a path MTU of 4096.
const MTU = 9000

// Config describes a fabric. Its zero value gives two NICs on one engine.
type Config struct {
	NICs    int           // 2 unless set
	Engines int           // 1 unless set; the NICs are distributed over them
	Slices  int           // engines that drive each NIC together, in place of Engines; by default 1, or the flag fabric.slices
	MTU     int           // of the interfaces, in bytes; 0 is the constant MTU
	Spin    time.Duration // how long an idle engine polls before it sleeps

	Limits       attach.Limits // of each client
	DeviceLimits nic.Limits    // of each NIC
	Identity     nic.Identity  // of each NIC

	// By the number of the NIC, from 0.
	PKeys    map[int][]uint16
	Faults   map[int]string
	Personas map[int]string         // names, in place of Identity and DeviceLimits
	Sinks    map[int]wire.FrameSink // receives the frames of the NIC's link

	IPOnly bool // the links do not carry RoCE v1, like the udp link

	// WrapLink, if not nil, returns the link that a NIC uses in place of inner.
	WrapLink func(nic int, inner wire.Link) wire.Link

	// WrapInterface, if not nil, returns the interface that a NIC uses in place of inner.
	WrapInterface func(nic int, inner wire.Interface) wire.Interface

	// NoLeakCheck omits the check for leaks, for tests that run in parallel with others.
	NoLeakCheck bool
}

// A Fabric is a server and its NICs, which can reach each other.
type Fabric struct {
	Engines []*nic.Engine
	Devices []*nic.Device     // Devices[i] is nic<i>; use them in Engine.Do only
	Faults  []*wire.FaultLink // on the link of each NIC
	Server  *attach.Server

	t      testing.TB
	shared bool // all engines drive each NIC
	verbs  *fault.Verbs
	socket string
	cancel context.CancelFunc
	runs   sync.WaitGroup
	closed sync.Once
}

// New starts a fabric. It is closed when the test ends; the test fails if something of it is left
// behind then.
func New(t testing.TB, c Config) *Fabric {
	t.Helper()
	if !c.NoLeakCheck {
		checkLeaks(t)
	}
	f := &Fabric{t: t, verbs: fault.NewVerbs()}
	t.Cleanup(f.Close)
	if err := f.start(c); err != nil {
		t.Fatalf("start fabric: %v", err)
	}
	return f
}

func (f *Fabric) start(c Config) error {
	if c.Engines == 0 && c.Slices == 0 {
		c.Slices = *slices
	}
	start := time.Now()
	clock := func() int64 { return int64(time.Since(start)) + 1 }
	for range max(c.Engines, c.Slices, 1) {
		e, err := nic.NewEngine(nic.EngineConfig{Spin: c.Spin, Clock: clock})
		if err != nil {
			return err
		}
		f.Engines = append(f.Engines, e)
	}
	if f.shared = c.Slices > 1; f.shared {
		nic.NewGroup(f.Engines...)
	}
	if c.NICs == 0 {
		c.NICs = 2
	}
	if c.MTU == 0 {
		c.MTU = MTU
	}
	cables := wire.NewFabric()
	for i := range c.NICs {
		if err := f.addNIC(&c, cables, i); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for _, e := range f.Engines {
		f.runs.Go(func() { e.Run(ctx) })
	}
	for _, e := range f.Engines {
		for e.Counters().Steps == 0 { // until then its goroutines may be missing from the next fabric's checkLeaks
			time.Sleep(100 * time.Microsecond)
		}
	}
	var err error
	f.Server, err = attach.NewServer(attach.Config{Engines: f.Engines, Limits: c.Limits, Release: "verbstest", Faults: f.verbs})
	return err
}

func (f *Fabric) addNIC(c *Config, cables *wire.Fabric, i int) error {
	program, err := parseFaults(i, c.NICs, c.Faults[i])
	if err != nil {
		return err
	}
	e := f.engineOf(i)
	mac := [6]byte{0x02, 0, 0, 0, byte((i + 1) >> 8), byte(i + 1)}
	iface := wire.StaticInterface("", mac, c.MTU,
		netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte((i + 1) >> 8), 15: byte(i + 1)}), 64))
	if c.WrapInterface != nil {
		iface = c.WrapInterface(i, iface)
	}
	port := cables.NewLink(e)
	iface = port.Follow(iface)
	var others []any // engines
	if c.Slices > 1 {
		for _, o := range f.Engines[1:] {
			others = append(others, o)
		}
	}
	var faults *wire.FaultLink
	var parts []nic.Slice
	for k, port := range split(port, others) {
		link := wire.Link(port)
		if sink := c.Sinks[i]; sink != nil {
			tap := wire.NewCaptureLink(link, nil, wire.CaptureOptions{MAC: iface.MAC, Clock: e.Now, FirstMark: uint64(i+k*c.NICs) << marksOfLink})
			if r, ok := sink.(*capture.Recorder); ok {
				sink = noteSink{r}
			}
			tap.Attach(sink, i)
			link = tap
		}
		if c.WrapLink != nil {
			link = c.WrapLink(i, link)
		}
		if c.IPOnly {
			link = ipLink{link}
		}
		if k == 0 {
			faults = wire.NewFaultLink(link, program)
			continue
		}
		parts = append(parts, nic.Slice{Engine: f.Engines[k], Link: faults.Share(link)})
	}
	p := &persona.Persona{Identity: c.Identity, Limits: c.DeviceLimits}
	if name := c.Personas[i]; name != "" {
		if p, err = persona.Load(name); err != nil {
			return err
		}
	}
	d, err := e.AddDevice(nic.DeviceConfig{
		Name: nameOf(i), Link: faults, Slices: parts, Iface: iface, Limits: p.Limits, PKeys: c.PKeys[i], Identity: p.Identity,
	})
	if err != nil {
		return err
	}
	f.Faults, f.Devices = append(f.Faults, faults), append(f.Devices, d)
	f.verbs.SetProgram(d.Name(), program)
	d.SetFaults(program)
	return nil
}

// split returns the links of a NIC: one, or those of its slices.
func split(port *wire.FabricLink, others []any) []*wire.FabricLink {
	if len(others) == 0 {
		return []*wire.FabricLink{port}
	}
	return port.Split(others...)
}

// marksOfLink is the bits of the number of a frame of one link.
const marksOfLink = 48

// noteSink makes a Recorder a wire.NoteSink.
type noteSink struct{ *capture.Recorder }

// WriteNote implements wire.NoteSink.
func (s noteSink) WriteNote(wallNs int64, iface int, mark uint64, n *fault.Note) error {
	own := *n
	own.NIC = nameOf(iface)
	s.AddNote(mark, own.Comment(), capture.Note{
		Time: time.Unix(0, wallNs).UTC(), Text: own.String(), NIC: own.NIC, Rule: own.Rule, PID: own.PID, Program: own.Comm, QP: own.QPN,
	})
	return nil
}

// Open opens a NIC, counted from 0. The context is closed with the test, if it is not before.
func (f *Fabric) Open(i int) *verbs.Context {
	f.t.Helper()
	c, err := verbs.Open(context.Background(), nameOf(i), verbs.WithConn(f.Connect()))
	if err != nil {
		f.t.Fatalf("open nic%d: %v", i, err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			f.t.Errorf("close nic%d: %v", i, err)
		}
	})
	return c
}

// Connect returns a new connection to the server.
func (f *Fabric) Connect(before ...func(client *net.UnixConn)) *net.UnixConn {
	f.t.Helper()
	client, server, err := socketPair()
	if err != nil {
		f.t.Fatalf("socketpair: %v", err)
	}
	for _, g := range before {
		g(client)
	}
	if err := f.Server.ServeConn(server); err != nil {
		f.t.Fatalf("serve connection: %v", err)
	}
	return client
}

// socketPair returns two connected seqpacket sockets.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(file)
		file.Close()
		if err != nil {
			return nil, nil, err
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1], nil
}

// Socket makes the server listen on a socket for other processes and returns its path, the value
// for their $SOFTROCE_SOCKET.
func (f *Fabric) Socket() string {
	f.t.Helper()
	if f.socket != "" {
		return f.socket
	}
	dir, err := os.MkdirTemp(tempdir.ForSocket(), "verbstest")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { os.RemoveAll(dir) })
	path, err := f.Server.Listen(attach.ListenConfig{Path: dir + "/sock"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.socket = path
	return path
}

// SetFaults replaces the fault program of a NIC, counted from 0.
func (f *Fabric) SetFaults(nic int, program string) error {
	p, err := parseFaults(nic, len(f.Devices), program)
	if err != nil {
		return err
	}
	f.Faults[nic].SetProgram(p)
	d := f.Devices[nic]
	f.verbs.SetProgram(d.Name(), p)
	f.Do(nic, func() { d.SetFaults(p) })
	return nil
}

// nameOf returns the name of a NIC, counted from 0.
func nameOf(nic int) string { return fmt.Sprintf("nic%d", nic) }

// parseFaults parses the fault program of one of n NICs.
func parseFaults(nic, n int, program string) (*fault.Program, error) {
	p, err := fault.Parse(strings.NewReader(program))
	if err == nil {
		var names []string
		for i := range n {
			names = append(names, nameOf(i))
		}
		err = p.CheckNICs(names)
	}
	if err != nil {
		return nil, fmt.Errorf("faults of nic%d: %w", nic, err)
	}
	return p, nil
}

// engineOf returns the engine of a NIC, or the first of those that share it.
func (f *Fabric) engineOf(i int) *nic.Engine {
	if f.shared {
		return f.Engines[0]
	}
	return f.Engines[i%len(f.Engines)]
}

// Do runs a function on the engine of a NIC, counted from 0.
func (f *Fabric) Do(nic int, fn func()) { f.engineOf(nic).Do(fn) }

// Close stops the server and the NICs. A client sees what it would see if its daemon ended.
func (f *Fabric) Close() {
	f.closed.Do(func() {
		if f.Server != nil {
			if err := f.Server.Close(context.Background()); err != nil {
				f.t.Errorf("close server: %v", err)
			}
		}
		if f.cancel != nil {
			f.cancel()
		}
		f.runs.Wait()
		for _, e := range f.Engines {
			if err := e.Close(); err != nil {
				f.t.Errorf("close engine: %v", err)
			}
		}
	})
}

// An ipLink is a link that carries RoCE v2 only.
type ipLink struct{ wire.Link }

// Capabilities implements wire.Link.
func (l ipLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.RoCEv1 = false
	return c
}
