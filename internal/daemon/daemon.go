package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/internal/ib"
	"softroce/internal/metrics"
	"softroce/internal/sysfs"
	"softroce/nic"
	"softroce/wire"
	"softroce/wire/fault"
)

// A Daemon is a set of running NICs.
type Daemon struct {
	config  Config
	release string
	log     *slog.Logger

	engines     []*nic.Engine
	build       builder
	tap         tap
	server      *attach.Server
	socket      string
	capture     *recording // that of Config.Capture, or nil
	captureFile string     // its file
	http        *http.Server
	metrics     net.Addr // nil without a metrics server

	stop    context.CancelFunc // stops the engines
	running sync.WaitGroup     // engines and the metrics server
	closed  sync.Once
	closing atomic.Value // string: the part that Close waits for
	err     error        // result of Close
}

// Start creates the NICs of a configuration and starts to serve clients. release is the version
// that clients and metrics report.
func Start(c Config, release string, log *slog.Logger) (*Daemon, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	removeStaleSysfs(log)
	d := &Daemon{config: c, release: release, log: log, stop: func() {}}
	if err := d.start(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// removeStaleSysfs removes the device files of daemons that were killed. A failure is logged and
// does not prevent the start.
func removeStaleSysfs(log *slog.Logger) {
	removed, err := sysfs.RemoveStale()
	for _, dir := range removed {
		log.Info("removed the device files of a daemon that was killed", "dir", dir)
	}
	if err != nil {
		log.Warn("cannot remove the device files of daemons that were killed", "err", err)
	}
}

func (d *Daemon) start() error {
	faults, err := readFaults(d.config.Fault)
	if err != nil {
		return err
	}
	if err := d.config.checkFaults(faults); err != nil {
		return err
	}
	verbs := fault.NewVerbs()
	if faults != nil {
		verbs.Number(faults)
		verbs.SetProgram("", faults)
	}
	clock := systemClock()
	d.tap.clock = clock
	fabric := wire.NewFabric()
	if d.config.topology != nil {
		if fabric, err = wire.NewSwitchedFabric(d.config.topology); err != nil {
			return fmt.Errorf("%s: %w", d.config.Fabric, err)
		}
	}
	d.build = builder{fabric: fabric, faults: faults, tap: &d.tap, log: d.log}
	shared := d.config.enginesOfNIC()
	for i := range max(min(d.config.Engines, len(d.config.NICs)), shared) {
		e, err := nic.NewEngine(nic.EngineConfig{Name: fmt.Sprint("engine", i), Number: i, Spin: d.config.Spin, KeepsP: true, Clock: clock})
		if err != nil {
			return err
		}
		d.engines = append(d.engines, e)
	}
	if shared > 1 {
		nic.NewGroup(d.engines...)
	}
	for i, n := range d.config.NICs {
		engines := d.engines[i%len(d.engines):][:1]
		if n.Engines > 1 {
			engines = d.engines[:n.Engines]
		}
		if err := d.build.add(engines, n); err != nil {
			return err
		}
	}
	if err := d.record(); err != nil {
		return err
	}
	d.server, err = attach.NewServer(attach.Config{
		Engines: d.engines, Limits: d.config.Limits, Release: d.release, Faults: verbs, Capture: &d.tap, Log: d.log,
		Render: func(s attach.Snapshot) any { return d.snapshot(s) }, UntilUnused: d.config.WhileUsed,
	})
	if err != nil {
		return err
	}
	if err := d.serveMetrics(); err != nil {
		return err
	}
	d.run()
	d.socket, err = d.server.Listen(attach.ListenConfig{
		Path: d.config.Socket, Mode: d.config.SocketMode, Group: d.config.SocketGroup,
	})
	return err
}

// systemClock returns a monotonic clock that starts at 1. All engines share it, so that the
// timestamps of their frames in a capture can be compared.
func systemClock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

// readFaults reads the fault program at path. It returns nil if path is empty.
func readFaults(path string) (*fault.Program, error) {
	if path == "" {
		return nil, nil
	}
	f, name, err := openInput(path)
	if err != nil {
		return nil, fmt.Errorf("fault program: %w", err)
	}
	defer f.Close()
	p, err := fault.Parse(f)
	var read *fs.PathError // which has the name
	switch {
	case errors.As(err, &read):
		return nil, fmt.Errorf("fault program: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// openInput opens a file, or standard input for "-", and returns its name for messages.
func openInput(path string) (io.ReadCloser, string, error) {
	if path == "-" {
		return io.NopCloser(os.Stdin), "standard input", nil
	}
	f, err := os.Open(path)
	return f, path, err
}

// record starts the capture of the whole run. If its file is a FIFO without a reader, frames are
// buffered until there is one.
func (d *Daemon) record() error {
	if d.config.Capture == "" {
		return nil
	}
	c, err := ParseCapture(d.config.Capture)
	if err != nil {
		return err
	}
	o := output{path: c.Output, blocking: d.config.CaptureBlocking}
	if !c.everything() {
		o.selected = c.selection()
	}
	if err := o.open(); errors.Is(err, unix.ENXIO) {
		d.log.Warn("the capture waits until a process reads its FIFO", "file", c.Output)
	} else if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	if d.capture, err = d.tap.start(o, c.Device); err != nil {
		return fmt.Errorf("capture: %s: %w", c.Output, err)
	}
	d.captureFile = c.Output
	go d.logCaptureEnd(d.capture)
	return nil
}

// selection returns what writes the files of o.
func (o RecordOptions) selection() *selection {
	return &selection{RecordOptions: o, open: func(path string) (*os.File, error) {
		f, _, err := openOutput(path)
		return f, err
	}}
}

// Record records to a file until the capture is stopped, or has Count packets. It loses packets if
// the file is slow, and no NIC waits for it.
func (d *Daemon) Record(o RecordOptions) (attach.Capture, error) {
	if err := d.config.checkNIC(o.Device); err != nil {
		return nil, fmt.Errorf("NIC %s: %w", o.Device, err)
	}
	to := output{selected: o.selection()}
	if err := to.open(); err != nil {
		return nil, err
	}
	r, err := d.tap.start(to, o.Device)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// logCaptureEnd logs why the capture ends before the daemon stops: an error, or that it has all the
// packets that it wants.
func (d *Daemon) logCaptureEnd(r *recording) {
	<-r.done
	s, err := r.State()
	switch {
	case err != nil:
		d.log.Error("capture ended", "file", d.captureFile, "err", err)
	case r.selected != nil && r.selected.full():
		d.log.Info("the capture has the packets that it was to record", "file", d.captureFile, "packets", s.Packets)
	}
}

// endCapture writes the capture out, and logs how much of it is missing.
func (d *Daemon) endCapture() error {
	if d.capture == nil {
		return nil
	}
	err := d.capture.Stop()
	if s, _ := d.capture.State(); s.Dropped > 0 {
		d.log.Warn("the capture lost packets because its file was too slow", "file", d.captureFile, "recorded", s.Packets, "lost", s.Dropped)
	}
	return err
}

// spareProcs is how many goroutines may run beside those that keep the processors busy.
const spareProcs = 16

// addSpareProcs lets more goroutines run at a time than there are processors. An engine that wakes
// then competes with busy goroutines in the kernel's scheduler, which prefers a thread that slept.
// In Go's scheduler it would wait behind all of them, with a time slice of 10 ms each.
var addSpareProcs = sync.OnceFunc(func() { addProcs(spareProcs) })

// addProcs changes GOMAXPROCS, which the daemons of a process share.
func addProcs(n int) {
	procs.Lock()
	defer procs.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

var procs sync.Mutex

func (d *Daemon) run() {
	addSpareProcs()
	addProcs(len(d.engines)) // see nic.EngineConfig.KeepsP
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	for i, e := range d.engines {
		d.running.Go(func() {
			defer addProcs(-1)
			if err := e.Run(ctx); err != nil {
				d.log.Error("engine ended", "engine", i, "err", err)
			}
		})
	}
}

// Limits of the metrics server: a scrape is one short request, and only a few programs scrape.
const (
	metricsTimeout     = 10 * time.Second
	metricsConnections = 64
)

// metricsPage is what a browser shows of the metrics server.
const metricsPage = `<!DOCTYPE html><title>softroce</title><h1>softroce</h1><p><a href="/metrics">Metrics</a>`

func (d *Daemon) serveMetrics() error {
	if d.config.Metrics == "" {
		return nil
	}
	l, err := net.Listen("tcp", d.config.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	l = netutil.LimitListener(l, metricsConnections)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(d, d.release))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, metricsPage) })
	d.http = &http.Server{Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	d.metrics = l.Addr()
	d.running.Go(func() {
		if err := d.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("metrics server ended", "err", err)
		}
	})
	return nil
}

// CloseTimeout bounds Close, whatever clients, files, pipes and engines do.
const CloseTimeout = 5 * time.Second

// clientsTimeout is the part of CloseTimeout for the clients. The rest is for a capture, which
// takes stopTimeout at most, and for the engines.
const clientsTimeout = 2500 * time.Millisecond

// Close shuts the daemon down in the order that the package comment gives, and returns the errors
// that occurred. If something does not end within CloseTimeout, Close returns an error that names
// it, and the process should exit. It may be called more than once.
func (d *Daemon) Close() error {
	d.closed.Do(func() {
		done := make(chan error, 1)
		go func() { done <- d.close() }()
		select {
		case d.err = <-done:
		case <-time.After(CloseTimeout):
			d.err = fmt.Errorf("shutdown: %s did not end within %v", d.closing.Load(), CloseTimeout)
		}
	})
	return d.err
}

func (d *Daemon) close() error {
	var errs []error
	if d.capture != nil {
		d.capture.release()
	}
	if d.http != nil {
		d.closing.Store("the metrics server")
		errs = append(errs, d.http.Close())
	}
	if d.server != nil {
		d.closing.Store("the connections of clients")
		ctx, cancel := context.WithTimeout(context.Background(), clientsTimeout)
		errs = append(errs, d.server.Close(ctx))
		cancel()
	}
	d.closing.Store("the capture")
	errs = append(errs, d.endCapture())
	d.closing.Store("the engines")
	d.stop()
	d.running.Wait()
	for _, e := range d.engines {
		errs = append(errs, e.Close())
	}
	d.closing.Store("the links")
	for _, c := range slices.Backward(d.build.closers) {
		errs = append(errs, io.Closer(c).Close())
	}
	return errors.Join(errs...)
}

// firstClientTimeout is how long a daemon with Config.WhileUsed waits for its first client.
const firstClientTimeout = 10 * time.Second

// Wait blocks until ctx ends. With Config.WhileUsed it also returns after the last client has
// disconnected, or if no client connects within firstClientTimeout; no new client is accepted then.
func (d *Daemon) Wait(ctx context.Context) {
	var noClient <-chan time.Time
	if d.config.WhileUsed {
		noClient = time.After(firstClientTimeout)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.server.Unused():
			return
		case <-noClient:
			if len(d.Snapshot().Clients) == 0 {
				return
			}
			noClient = nil
		}
	}
}

// Socket returns the path of the clients' socket.
func (d *Daemon) Socket() string { return d.socket }

// MetricsAddr returns the address of the metrics server, or nil if there is none.
func (d *Daemon) MetricsAddr() net.Addr { return d.metrics }

// Snapshot returns the current state of the daemon.
func (d *Daemon) Snapshot() Snapshot { return d.snapshot(d.server.Snapshot()) }

func (d *Daemon) snapshot(s attach.Snapshot) Snapshot {
	out := NewSnapshot(s, d.Engines())
	out.Ports = d.build.fabric.SwitchPorts(d.tap.clock())
	return out
}

// Devices implements metrics.Source.
func (d *Daemon) Devices() []nic.Snapshot { return d.server.Snapshot().Devices }

// Engines implements metrics.Source.
func (d *Daemon) Engines() (list []nic.EngineCounters) {
	for _, e := range d.engines {
		list = append(list, e.Counters())
	}
	return list
}

// WriteReady writes the daemon's announcement that it is ready: a line for each NIC, and one each
// for the socket and the metrics.
func (d *Daemon) WriteReady(w io.Writer) error {
	nics := map[string]nic.Snapshot{}
	for _, s := range d.Devices() {
		nics[s.Name] = s
	}
	for _, n := range d.config.NICs {
		s := nics[n.Name]
		state := "DOWN"
		if s.PortState == ib.PortActive {
			state = "ACTIVE"
		}
		if _, err := fmt.Fprintf(w, "%s on %s: state %s, path MTU %d%s\n", n.Name, s.Link, state, s.ActiveMTU, addresses(s.GIDs)); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("socket %s\n", d.socket)
	if d.metrics != nil {
		text += fmt.Sprintf("metrics http://%v/metrics\n", d.metrics)
	}
	_, err := io.WriteString(w, text)
	return err
}

// WriteEnd writes a line that says what the capture of the whole run has recorded, if there is one.
// It may be called after Close.
func (d *Daemon) WriteEnd(w io.Writer) error {
	if d.capture == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "capture %s: %s\n", d.captureFile, d.capture.recorded())
	return err
}

// addresses formats the IP addresses of a GID table, without the first: the link-local GID of the
// MAC.
func addresses(gids []nic.GIDEntry) (s string) {
	first := true
	for _, g := range gids {
		switch {
		case g.RoCEv1:
		case first:
			first = false
		default:
			s += ", " + g.GID.Addr().String()
		}
	}
	return s
}
