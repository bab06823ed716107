package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/internal/control"
	"softroce/internal/sysfs"
	"softroce/mrtable"
	"softroce/nic"
)

// Limits bound what one client may hold, so that it cannot starve the others. 0 stands
// for the value of DefaultLimits.
type Limits struct {
	Connections int // of one user, not one client
	PDs         int
	CQs         int // completion channels, too
	QPs         int
	MRs         int
	AHs         int
	SRQs        int
	Groups      int    // QPs attached to multicast groups, each attachment counting
	Registered  uint64 // bytes of registered memory
	Rings       uint64 // bytes of rings
	Device      uint64 // bytes of device memory
}

// DefaultLimits keep one client within half of the 65530 mappings that Linux lets a
// process have, and within memory that a small machine can spare.
var DefaultLimits = Limits{
	Connections: 1024, PDs: 4096, CQs: 4096, QPs: 8192, MRs: 8192, AHs: 16384,
	SRQs: 4096, Groups: 1024,
	Registered: 1 << 40, Rings: 1 << 30, Device: 1 << 20,
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	orElse(&l.Connections, d.Connections)
	orElse(&l.PDs, d.PDs)
	orElse(&l.CQs, d.CQs)
	orElse(&l.QPs, d.QPs)
	orElse(&l.MRs, d.MRs)
	orElse(&l.AHs, d.AHs)
	orElse(&l.SRQs, d.SRQs)
	orElse(&l.Groups, d.Groups)
	orElse(&l.Registered, d.Registered)
	orElse(&l.Rings, d.Rings)
	orElse(&l.Device, d.Device)
	return l
}

func orElse[T int | uint64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (l *Limits) context() nic.ContextLimits {
	return nic.ContextLimits{
		PDs: l.PDs, CQs: l.CQs, QPs: l.QPs, MRs: l.MRs, AHs: l.AHs,
		SRQs: l.SRQs, Groups: l.Groups, MWs: l.MRs, XRCDs: l.PDs,
		RegisteredBytes: l.Registered, RingBytes: l.Rings, DeviceMemory: l.Device,
	}
}

// Config is what a Server is made of.
type Config struct {
	// Engines have the devices. They run, or are stepped, as long as the server does.
	Engines []*nic.Engine

	Limits  Limits
	Release string // the daemon's version, for clients to show

	// WhileUsed makes the server refuse clients once the last one has left: see Unused.
	UntilUnused bool

	// Snapshot returns what is told, as JSON, to those who ask for a snapshot. Nil stands
	// for the server's own Snapshot.
	Snapshot func() any

	// Capture starts captures; nil: there are none (EOPNOTSUPP).
	Capture Capturer

	Log *slog.Logger // nil: nothing is logged
}

// A Capturer starts captures on behalf of clients.
type Capturer interface {
	// StartCapture writes what passes the link of a device ("": of all) to w, which it
	// owns from now on, also where it fails. The error may be a syscall.Errno.
	StartCapture(w *os.File, device string) (Capture, error)
}

// A Capture is a capture that runs. Its methods may be called from any goroutine.
type Capture interface {
	Stop() error // flushes and closes; called once
	State() (control.CaptureState, error)
}

// A Server serves the attach ABI to any number of clients.
type Server struct {
	config  Config
	devices []device
	cm      *cmService
	log     *slog.Logger

	mu        sync.Mutex
	conns     map[*conn]struct{}
	users     map[uint32]int // connections of each UID
	listeners map[*listener]struct{}
	closed    bool
	running   sync.WaitGroup // connections and accept loops
	tree      sysfs.Tree

	pagesMu sync.Mutex // taken after a connection's
	pages   map[pageID]*conn

	self *mrtable.Process // for memory that may lose its pages

	unused chan struct{} // closed when the last client has left, with Config.WhileUsed
}

// A device and who drives it.
type device struct {
	*nic.Device
	engine *nic.Engine
}

// NewServer returns a server for the devices that the engines have now.
func NewServer(c Config) (*Server, error) {
	c.Limits = c.Limits.withDefaults()
	s := &Server{
		config: c, log: c.Log, conns: map[*conn]struct{}{}, users: map[uint32]int{}, listeners: map[*listener]struct{}{},
		pages: map[pageID]*conn{}, self: mrtable.OpenSelf(),
		unused: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, e := range c.Engines {
		e.Do(func() {
			for _, d := range e.Devices() {
				s.devices = append(s.devices, device{d, e})
			}
		})
	}
	if len(s.devices) == 0 {
		return nil, errors.New("attach: no devices to serve")
	}
	var err error
	if s.cm, err = newCMService(s.devices); err != nil {
		return nil, err
	}
	return s, nil
}

// find returns a device by name; "" is the first.
func (s *Server) findDevice(name string) (device, bool) {
	for _, d := range s.devices {
		if name == "" || d.Name() == name {
			return d, true
		}
	}
	return device{}, false
}

// ServeConn serves a connected seqpacket socket, which it owns from now on. It does not
// wait for the connection to end.
func (s *Server) ServeConn(sock *net.UnixConn) error {
	peer, err := peerOf(sock)
	if err != nil {
		sock.Close()
		return err
	}
	c := newConn(s, sock, peer)
	if err := s.addConn(c); err != nil {
		c.sendGoodbye(err)
		sock.Close()
		peer.close()
		return err
	}
	go func() {
		defer s.running.Done()
		c.serve()
		s.removeConn(c)
	}()
	return nil
}

func (s *Server) addConn(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errorf(syscall.ESHUTDOWN, "the daemon is ending")
	}
	if n := s.users[c.peer.UID]; n >= s.config.Limits.Connections {
		return errorf(syscall.EMFILE, "user %d has %d connections, as many as one may have", c.peer.UID, n)
	}
	s.users[c.peer.UID]++
	s.conns[c] = struct{}{}
	s.running.Add(1)
	return nil
}

func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.users[c.peer.UID]--; s.users[c.peer.UID] == 0 {
		delete(s.users, c.peer.UID)
	}
	if s.config.UntilUnused && len(s.conns) == 0 && !s.closed {
		s.closed = true // who comes now finds a daemon that is ending, not one that ends while he is there
		close(s.unused)
	}
}

// Unused returns a channel that is closed when, with Config.WhileUsed, the last client has
// left. There are no others from then on, and the server is to be closed.
func (s *Server) Unused() <-chan struct{} { return s.unused }

// Close ends the server: it stops to listen, every client hears IBV_EVENT_DEVICE_FATAL,
// then its connection is closed and its objects are gone when Close returns. Call it before
// the engines are closed.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	listens := s.listeners
	s.listeners = map[*listener]struct{}{}
	s.mu.Unlock()

	var first error
	for l := range listens {
		if err := l.close(); err != nil && first == nil {
			first = err
		}
	}
	s.cm.removeDevices()
	for _, c := range conns {
		c.notifyFatal()
		c.end(errorf(syscall.ESHUTDOWN, "the daemon is ending"))
	}
	s.running.Wait()
	s.cm.close()
	if err := s.tree.Close(); err != nil && first == nil {
		first = err
	}
	return first
}

// Snapshot is what the server tells of its clients and devices.
type Snapshot struct {
	PID     int            `json:"pid"`
	Release string         `json:"release"`
	Clients []ClientInfo   `json:"clients"`
	Devices []nic.Snapshot `json:"devices"`
	CMIDs   []cm.IDInfo    `json:"cm_ids"` // identifiers of the connection manager
}

// ClientInfo is a connection.
type ClientInfo struct {
	PID    int    `json:"pid"`
	UID    uint32 `json:"uid"`
	Comm   string `json:"comm"`
	Device string `json:"device,omitempty"` // "" before it has opened one
}

// Snapshot returns what there is now. It may be called from any goroutine but an engine's.
func (s *Server) Snapshot() Snapshot {
	snap := Snapshot{PID: os.Getpid(), Release: s.config.Release}
	s.mu.Lock()
	for c := range s.conns {
		snap.Clients = append(snap.Clients, c.info())
	}
	s.mu.Unlock()
	s.cm.do(func() { snap.CMIDs = s.cm.manager.IDs() })
	for _, d := range s.devices {
		d.engine.Do(func() { snap.Devices = append(snap.Devices, d.Device.Snapshot()) })
	}
	return snap
}

// An Error is a refusal: an errno, and why. It matches its syscall.Errno.
type Error struct {
	Errno syscall.Errno
	Text  string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Text, e.Errno) }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func errorf(no syscall.Errno, format string, a ...any) error {
	return &Error{Errno: no, Text: fmt.Sprintf(format, a...)}
}

// Times that a client may make the server wait, or the other way round.
const (
	resolveTimeout = 4 * time.Second // for a neighbour: Linux asks three times, a second apart
	goodbyeTimeout = 100 * time.Millisecond
)
