// Package verbstest gives a Go test NICs to use verbs on: two or more on a private fabric, in the
// test's own process, without a daemon, a network or privileges.
//
//	func TestEcho(t *testing.T) {
//		a, b := verbstest.Pair(t)
//		x, y := verbstest.ConnectedRC(t, a, b)
//		...
//	}
//
// When the test ends the fabric is closed, and the test fails if objects of it are left behind.
// Options add faults to the fabric, record the frames that it carries, and change the NICs.
package verbstest

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
	"softroce/internal/metrics"
	"softroce/internal/suggest"
	"softroce/verbs"
	"softroce/wire"
)

// MTU is the default MTU of the fabric's interfaces in bytes: room for a path MTU of 4096.
const MTU = fabrictest.MTU

// An Option changes what New makes.
type Option func(*options)

type options struct{ config fabrictest.Config }

// WithNICs makes n NICs in place of two. They are called nic0, nic1 …, with the addresses 192.0.2.1
// and 2001:db8::1, 192.0.2.2 and 2001:db8::2 …
func WithNICs(n int) Option { return func(o *options) { o.config.NICs = n } }

// WithEngines distributes the NICs over n engines, each of which is a thread. The default is one.
func WithEngines(n int) Option { return func(o *options) { o.config.Engines = n } }

// WithEnginesPerNIC lets n engines, at most 32, drive each NIC together, in place of WithEngines:
// its queue pairs are dealt out to them.
func WithEnginesPerNIC(n int) Option { return func(o *options) { o.config.Slices = n } }

// WithMTU sets the MTU of the fabric's interfaces. The largest path MTU is the largest power of
// two that is 80 bytes below.
func WithMTU(bytes int) Option { return func(o *options) { o.config.MTU = bytes } }

// WithSpin sets how long an idle engine polls before it sleeps.
func WithSpin(d time.Duration) Option { return func(o *options) { o.config.Spin = d } }

// Limits bounds what each client may hold. A field of 0 is the daemon's default.
type Limits struct {
	Connections int // of one user, not of one client
	PDs         int
	CQs         int // completion channels too
	QPs         int
	MRs         int
	AHs         int
	SRQs        int
	Groups      int    // QPs attached to multicast groups, each attachment counting
	Registered  uint64 // bytes of registered memory
	Rings       uint64 // bytes of rings
	Device      uint64 // bytes of device memory
}

// WithLimits bounds what each client may hold.
func WithLimits(l Limits) Option { return func(o *options) { o.config.Limits = attach.Limits(l) } }

// WithPKeys gives a NIC, counted from 0, a P_Key table.
func WithPKeys(nic int, keys ...uint16) Option {
	return func(o *options) { o.config.PKeys[nic] = keys }
}

// WithFaults puts a fault program (docs/reference/fault-language.md) on the link of one NIC,
// counted from 0. Its rules for verbs apply to clients that open this NIC. Fabric.SetFaults
// replaces it.
func WithFaults(nic int, program string) Option {
	return func(o *options) { o.config.Faults[nic] = program }
}

// WithPersona makes a NIC, counted from 0, report to be another model: one of "softroce persona
// list", or a file (docs/reference/personas.md).
func WithPersona(nic int, name string) Option {
	return func(o *options) { o.config.Personas[nic] = name }
}

// A FrameSink receives the frames of a link: a capture.Recorder or a capture.Writer, for example.
// WriteFrame gets the time in nanoseconds of the Unix epoch and the number of the NIC. It may be
// called from several goroutines, and does not keep frame.
type FrameSink interface {
	WriteFrame(wallNs int64, iface int, frame []byte) error
}

// WithCapture gives sink every frame on the link of the first NIC, in both directions.
func WithCapture(sink FrameSink) Option { return WithCaptureAt(0, sink) }

// WithCaptureAt is WithCapture for any NIC, counted from 0.
func WithCaptureAt(nic int, sink FrameSink) Option {
	return func(o *options) { o.config.Sinks[nic] = sink }
}

// WithoutLeakCheck omits the check for leaks, for tests that run in parallel with others.
func WithoutLeakCheck() Option { return func(o *options) { o.config.NoLeakCheck = true } }

// A Fabric is a set of NICs that can reach each other, and the server that gives access to them.
type Fabric struct {
	t      testing.TB
	fabric *fabrictest.Fabric
}

// New starts a fabric for a test. Its methods fail the test when they fail.
func New(t testing.TB, opts ...Option) *Fabric {
	t.Helper()
	return &Fabric{t, fabrictest.New(t, newConfig(opts))}
}

// NewFabric starts a fabric outside of a test: in an example, or a program. Its methods panic when
// they fail. The caller closes it.
func NewFabric(opts ...Option) (f *Fabric, err error) {
	t := &program{}
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, fmt.Errorf("verbstest: %v", r)
			t.cleanup()
		}
	}()
	c := newConfig(opts)
	c.NoLeakCheck = true
	return &Fabric{t, fabrictest.New(t, c)}, nil
}

func newConfig(opts []Option) fabrictest.Config {
	o := options{fabrictest.Config{
		PKeys: map[int][]uint16{}, Faults: map[int]string{}, Personas: map[int]string{}, Sinks: map[int]wire.FrameSink{},
	}}
	for _, f := range opts {
		f(&o)
	}
	return o.config
}

// Pair starts a fabric with two NICs and opens each of them.
func Pair(t testing.TB, opts ...Option) (a, b *verbs.Context) {
	t.Helper()
	f := New(t, opts...)
	return f.Open(0), f.Open(1)
}

// Open opens a NIC, counted from 0. The context is closed with the fabric or test, if it is not
// before.
func (f *Fabric) Open(i int) *verbs.Context {
	f.t.Helper()
	return f.fabric.Open(i)
}

// Connected opens NICs 0 and 1 and connects an endpoint of each.
func (f *Fabric) Connected(c EndpointConfig) (x, y *Endpoint) {
	f.t.Helper()
	return c.Connect(f.t, f.Open(0), f.Open(1))
}

// Endpoint opens a NIC, counted from 0, and creates an endpoint on it that is not connected.
func (f *Fabric) Endpoint(i int, c EndpointConfig) *Endpoint {
	f.t.Helper()
	return c.New(f.t, f.Open(i))
}

// Dial returns a new connection to the server, for verbs.WithConn and rdmacm.WithConn.
func (f *Fabric) Dial() *net.UnixConn {
	f.t.Helper()
	return f.fabric.Connect()
}

// Socket makes the server listen on a socket for other processes and returns its path, the value
// for their $SOFTROCE_SOCKET.
func (f *Fabric) Socket() string {
	f.t.Helper()
	return f.fabric.Socket()
}

// SetFaults replaces the fault program of a NIC, counted from 0. The empty program has no faults.
func (f *Fabric) SetFaults(nic int, program string) {
	f.t.Helper()
	if err := f.fabric.SetFaults(nic, program); err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
}

// A Fault is a rule of the fault language, and what it did at one NIC.
type Fault struct {
	NIC        string
	ID         int    // see AddFaults; 0 for a rule of WithFaults or SetFaults
	Line       int    // in its program
	Rule       string // its text
	Matched    uint64 // packets, verbs, work requests or accesses that meet its conditions
	Acted      uint64 // those on which it acted
	Overflowed uint64 // packets that were dropped because a queue was full
}

// AddFaults adds the rules of a fault program to those that the NICs have, and returns their IDs in
// the order of the lines, as "softroce fault add" does. A rule acts on all NICs, or on the one that
// it names, from then on. SetFaults replaces rules for packets, completions and accesses at its NIC
// that were added before.
func (f *Fabric) AddFaults(program string) (ids []int) {
	f.t.Helper()
	f.operate(func(ctx context.Context, c *control.Client) error {
		first, last, err := c.AddFaults(ctx, program)
		for id := first; id <= last; id++ {
			ids = append(ids, id)
		}
		return err
	})
	return ids
}

// RemoveFault removes a rule of AddFaults. Verbs and completions that it holds go on.
func (f *Fabric) RemoveFault(id int) {
	f.t.Helper()
	f.operate(func(ctx context.Context, c *control.Client) error { return c.RemoveFault(ctx, id) })
}

// Faults returns what each rule did at each NIC that it applies to.
func (f *Fabric) Faults() (l []Fault) {
	for _, d := range f.fabric.Server.Snapshot().Devices {
		for _, i := range d.Faults {
			l = append(l, Fault{d.Name, i.ID, i.Line, i.Rule, i.Matched, i.Acted, i.Overflowed})
		}
	}
	return l
}

// SetCounter sets a counter of a NIC, counted from 0. Its name is that of "softroce show counters".
func (f *Fabric) SetCounter(nic int, counter string, value uint64) {
	f.t.Helper()
	f.operate(func(ctx context.Context, c *control.Client) error {
		return c.SetCounter(ctx, f.fabric.Devices[nic].Name(), counter, value)
	})
}

// Counter returns a counter of a NIC, counted from 0, by the name of "softroce show counters".
func (f *Fabric) Counter(nic int, counter string) (n uint64) {
	f.t.Helper()
	k := metrics.Find(counter)
	if k == nil {
		f.t.Fatalf("verbstest: %q is not a counter%s", counter, suggest.Word(counter, metrics.Names()))
		return 0
	}
	f.fabric.Do(nic, func() {
		c := f.fabric.Devices[nic].Counters()
		n = k.Value(&c)
	})
	return n
}

// operate lets the operator of the fabric do something.
func (f *Fabric) operate(do func(context.Context, *control.Client) error) {
	f.t.Helper()
	ctx := context.Background()
	c, err := control.NewClient(ctx, f.Dial())
	if err == nil {
		defer c.Close()
		err = do(ctx, c)
	}
	if err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
}

// SetLink takes the link of a NIC, counted from 0, down or up. Its clients get an event, and while
// it is down, no packet leaves or reaches it.
func (f *Fabric) SetLink(nic int, up bool) {
	f.t.Helper()
	f.fabric.Do(nic, func() { f.fabric.Devices[nic].SetLink(up) })
}

// Fire raises an asynchronous event of a NIC, counted from 0, with what belongs to it: a queue pair
// that is in error stops. number is the number of the queue pair that the event is about, and 0 for
// an event of the port or the device. The test fails if there is none.
func (f *Fabric) Fire(nic int, event verbs.EventType, number uint32) {
	f.t.Helper()
	var err error
	f.fabric.Do(nic, func() { err = f.fabric.Devices[nic].Fire(ib.EventType(event), number) })
	if err != nil {
		f.t.Fatalf("verbstest: %v", err)
	}
}

// Close stops the server and the NICs before the test ends: what a client sees when its daemon
// ends. A fabric of NewFabric first closes the contexts that Open opened.
func (f *Fabric) Close() {
	if p, ok := f.t.(*program); ok {
		p.cleanup()
	}
	f.fabric.Close()
}
