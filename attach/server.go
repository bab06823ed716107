package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/internal/control"
	"softroce/internal/sysfs"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/wire/fault"
)

// Limits bound the resources of one client, so that it cannot exhaust those of the others. 0 means
// the value in DefaultLimits. Package nic counts objects and bytes and refuses what exceeds
// nic.ContextLimits; this package limits connections, completion channels and single registrations.
type Limits struct {
	Connections int // of one user
	PDs         int
	CQs         int // also limits completion channels
	QPs         int
	MRs         int
	AHs         int
	SRQs        int
	Groups      int    // attachments of QPs to multicast groups
	Registered  uint64 // bytes of registered memory
	Rings       uint64 // bytes of rings
	Device      uint64 // bytes of device memory
}

// DefaultLimits keep one client below half of the 65530 mappings that Linux allows a process
// (vm.max_map_count), and below the memory of a small machine.
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

// Config configures a Server.
type Config struct {
	// Engines have the devices. They must run, or be stepped, as long as the server does.
	Engines []*nic.Engine

	Limits  Limits
	Release string // the daemon's version, sent to clients

	// UntilUnused makes the server stop accepting clients when the last one has left: see Unused.
	UntilUnused bool

	// Render converts a snapshot to the value that is sent, as JSON, to a client that requests one.
	// Nil means the snapshot itself.
	Render func(Snapshot) any

	// Faults makes control verbs of clients fail or take longer. Nil means that none does.
	Faults *fault.Verbs

	// Capture starts captures. If it is nil, requests for captures fail with EOPNOTSUPP.
	Capture Capturer

	Log *slog.Logger // nil disables logging
}

// A Capturer starts captures on behalf of clients.
type Capturer interface {
	// StartCapture writes the packets of a device's link ("" means all devices) to w. It owns w
	// even if it fails. The error may be a syscall.Errno.
	StartCapture(w *os.File, device string) (Capture, error)
}

// A Capture is a running capture. Its methods may be called from any goroutine.
type Capture interface {
	Stop() error // flushes and closes the file; called once
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
	users     map[uint32]int // number of connections by UID
	listeners map[*listener]struct{}
	closed    bool
	running   sync.WaitGroup // connections and accept loops
	tree      sysfs.Tree

	lastClient atomic.Uint32 // number of the last connection

	pagesMu sync.Mutex // locked after a connection's mu
	pages   map[pageID]*conn

	snapshots flight[Snapshot]
	texts     flight[snapshotText] // by the users that may see them

	budget *budget

	self *mrtable.Process // access to memory that may lose its pages

	unused chan struct{} // closed when the last client has left, with Config.UntilUnused
}

// A device is a device and its engine.
type device struct {
	*nic.Device
	engine *nic.Engine
}

// NewServer returns a server for the current devices of the engines.
func NewServer(c Config) (*Server, error) {
	c.Limits = c.Limits.withDefaults()
	if c.Faults == nil {
		c.Faults = fault.NewVerbs()
	}
	s := &Server{
		config: c, log: c.Log, conns: map[*conn]struct{}{}, users: map[uint32]int{}, listeners: map[*listener]struct{}{},
		pages: map[pageID]*conn{}, self: mrtable.OpenSelf(),
		unused: make(chan struct{}), budget: newBudget(),
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
	if s.cm, err = newCMService(s.devices, s.setConnectionRules); err != nil {
		return nil, err
	}
	return s, nil
}

// findDevice returns the device with a name; "" means the first one.
func (s *Server) findDevice(name string) (device, bool) {
	for _, d := range s.devices {
		if name == "" || d.Name() == name {
			return d, true
		}
	}
	return device{}, false
}

// noDevice is the error of a request that names a device which does not exist.
func (s *Server) noDevice(name string) error {
	return errorf(syscall.ENODEV, "no NIC %q (have: %s)", name, strings.Join(s.deviceNames(), ", "))
}

func (s *Server) deviceNames() []string {
	names := make([]string, len(s.devices))
	for i, d := range s.devices {
		names[i] = d.Name()
	}
	return names
}

// ServeConn serves a connected seqpacket socket and returns at once. It owns the socket, even if it
// fails.
func (s *Server) ServeConn(sock *net.UnixConn) error {
	peer, err := peerOf(sock)
	if err != nil {
		sock.Close()
		return err
	}
	c := newConn(s, sock, peer)
	if err := s.addConn(c); err != nil {
		c.sendGoodbye(err)
		peer.close()
		go c.closeSocket()
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
		return errorf(syscall.ESHUTDOWN, "the daemon is shutting down")
	}
	if n := s.users[c.peer.UID]; n >= s.config.Limits.Connections {
		return errorf(syscall.EMFILE, "user %d has %d connections, the limit", c.peer.UID, n)
	}
	if err := s.budget.take(c.peer.UID, connectionCost); err != nil {
		return err
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
		s.closed = true // refuse new connections before shutdown begins
		close(s.unused)
	}
}

// Unused returns a channel that is closed when the last client has left, with Config.UntilUnused.
// From then on the server refuses connections. The caller should close it.
func (s *Server) Unused() <-chan struct{} { return s.unused }

// Close shuts the server down. It stops listening, sends IBV_EVENT_DEVICE_FATAL to every client,
// closes the connections, and returns when all objects are destroyed or when ctx ends; the error
// then names what is left. No client can delay the others' notification. Call it before closing the
// engines.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	conns := slices.Collect(maps.Keys(s.conns))
	listens := s.listeners
	s.listeners = map[*listener]struct{}{}
	s.mu.Unlock()

	var errs []error
	for l := range listens {
		errs = append(errs, l.close())
	}
	var notified sync.WaitGroup
	notified.Go(s.cm.removeDevices)
	for _, d := range s.devices {
		notified.Go(func() { d.engine.Do(d.NotifyFatal) })
	}
	await(ctx, fatalTimeout, &notified)
	for _, c := range conns {
		c.end(errorf(syscall.ESHUTDOWN, "the daemon is shutting down"))
	}
	if !await(ctx, 0, &s.running) {
		return errors.Join(append(errs, s.unfinished())...)
	}
	s.cm.close()
	return errors.Join(append(errs, s.tree.Close())...)
}

// await waits for a group until ctx ends or, unless it is 0, a time has passed. It reports whether
// the group is done.
func await(ctx context.Context, limit time.Duration, g *sync.WaitGroup) bool {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// unfinished describes the clients whose connections have not ended.
func (s *Server) unfinished() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for c := range s.conns {
		list = append(list, fmt.Sprintf("%d (user %d)", c.peer.PID, c.peer.UID))
	}
	if n := len(list); n > maxNamedClients {
		list = append(list[:maxNamedClients], fmt.Sprintf("%d more", n-maxNamedClients))
	}
	return fmt.Errorf("clients whose objects are not released: PID %s", strings.Join(list, ", "))
}

// maxNamedClients is the number of clients that an error lists.
const maxNamedClients = 8

// Snapshot is the state of the server: its clients, devices and CM identifiers.
type Snapshot struct {
	PID     int            `json:"pid"`
	Release string         `json:"release"`
	Clients []ClientInfo   `json:"clients"`
	Devices []nic.Snapshot `json:"devices"`
	CMIDs   []cm.IDInfo    `json:"cm_ids"` // identifiers of the connection manager
	Users   []UserInfo     `json:"users"`
}

// ClientInfo describes a connection.
type ClientInfo struct {
	Client uint32 `json:"client"` // its number
	PID    int    `json:"pid"`
	UID    uint32 `json:"uid"`
	Comm   string `json:"comm"`
	Device string `json:"device,omitempty"` // "" before it opens one
}

// Snapshot returns the state of the server. It may be called from any goroutine but an engine's.
// Callers that ask while a snapshot is made share it, and must not change it.
func (s *Server) Snapshot() (snap Snapshot) {
	s.snapshots.share("", func() (Snapshot, error) { return s.newSnapshot(), nil },
		func(v Snapshot) error { snap = v; return nil }, nil)
	return snap
}

func (s *Server) newSnapshot() Snapshot {
	snap := Snapshot{PID: os.Getpid(), Release: s.config.Release, Users: s.budget.info()}
	s.mu.Lock()
	for i := range snap.Users {
		snap.Users[i].Connections = s.users[snap.Users[i].UID]
	}
	for c := range s.conns {
		snap.Clients = append(snap.Clients, *c.shown.Load())
	}
	s.mu.Unlock()
	var ids cm.Listing
	for done := false; !done && s.cm.do(func() { done = ids.Add(s.cm.manager, idsAtATime) }); {
	}
	snap.CMIDs = ids.IDs()
	for _, d := range s.devices {
		of := d.engine.Snapshot(d.Device)
		of.Faults = append(of.Faults, s.verbFaults(d.Device)...)
		slices.SortStableFunc(of.Faults, func(a, b nic.FaultInfo) int { return cmp.Compare(a.ID, b.ID) })
		snap.Devices = append(snap.Devices, of)
	}
	return snap
}

// idsAtATime is how many identifiers the connection manager lists between two other tasks: about
// 100 µs.
const idsAtATime = 256

// VisibleTo returns the part of s that user uid may see.
func (s Snapshot) VisibleTo(uid uint32) Snapshot {
	s.Devices = slices.Clone(s.Devices)
	for i, d := range s.Devices {
		s.Devices[i] = d.VisibleTo(uid)
	}
	return s
}

// An Error is the reason for rejecting a request or a client. It matches its syscall.Errno with
// errors.Is.
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

// Timeouts.
const (
	resolveTimeout = 4 * time.Second // for a neighbor; Linux solicits three times, a second apart
	fatalTimeout   = time.Second     // for the engines to notify clients of the shutdown
	hangupInterval = time.Second     // between checks whether a client that must wait is still there
	lingerTimeout  = time.Second     // for the unfinished requests of a client that has left
)
