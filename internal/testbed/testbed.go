package testbed

import (
	"errors"
	"net/netip"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A Testbed is a NIC under test and the network at its port.
type Testbed interface {
	Network

	// NIC returns the NIC under test, or a second one that the first can be connected to. If there
	// is no second one, the error is ErrOneNIC.
	NIC(second bool) (NIC, error)
	Close() error
}

// A Network is the network between the NIC under test and its peer, the script.
type Network interface {
	// Now returns the time since the testbed was created.
	Now() time.Duration

	// Run lets time pass until done returns true or the given time is reached, and delivers
	// everything in flight at that moment. It returns the last result of done. A nil done is never
	// true.
	Run(until time.Duration, done func() bool) bool

	// Settle delivers everything in flight. In a simulation no time passes. A network that cannot
	// tell what is in flight waits until done returns true or a timeout expires, or, if done is
	// nil, for a short time. It returns the last result of done.
	Settle(done func() bool) bool

	// PeerQPN returns the number of the first queue pair that the script plays; others follow.
	PeerQPN() uint32

	// Slack returns by how much arrivals may be early or late, because the network's clock is not
	// the NIC's. Both are 0 if it is.
	Slack() (early, late time.Duration)

	// Send sends a packet of the script.
	Send(f *wire.TxFrame) error

	// Frames returns nil if SendFrame is supported, else ErrNoFrames.
	Frames() error

	// SendFrame sends an Ethernet frame, which the NIC receives as from a link of the given kind.
	SendFrame(way wire.InjectAs, frame []byte) error

	// Peer returns the source address of the script's packets.
	Peer() netip.Addr

	// Path returns the path of the script's packets to an address of the NIC under test.
	Path(to netip.Addr) (*wire.Path, error)

	// Join makes the script receive packets sent to a multicast group.
	Join(group netip.Addr) error

	// Fault adds a rule of the fault language (docs/reference/fault-language.md) for the packets
	// that the NIC under test sends and receives from now on. If that is not possible, the error is
	// ErrNoFaults.
	Fault(rule string) error
}

// A Port is a testbed that can change the network interface of the NIC under test.
type Port interface {
	// SetPort sets the state of the port.
	SetPort(up bool)

	// SetAddress adds an address to the interface, or removes it.
	SetAddress(a netip.Addr, add bool)
}

// Errors of a testbed that lacks a capability; match with errors.Is. A scenario that needs the
// capability is skipped.
var (
	ErrOneNIC        = errors.New("the testbed has only one NIC")
	ErrNoXRC         = errors.New("the NIC under test has no XRC")
	ErrNoAtomicWrite = errors.New("the NIC under test, or its library, has no ATOMIC WRITE")
	ErrNoFlush       = errors.New("the library of the NIC under test has no FLUSH")
	ErrNoFaults      = errors.New("the testbed cannot inject faults")
	ErrNoRings       = errors.New("the testbed's verbs program cannot break the ABI")
	ErrNoFrames      = errors.New("the testbed can send RoCE packets only")
	ErrNoVLAN        = errors.New("the NIC under test has no address in the VLAN")
	ErrNoRoCEv1      = errors.New("no RoCE v1 to the NIC under test")
	ErrLink          = errors.New("no link to a live NIC") // also for an invalid description of a link
)

// A NIC is a NIC as the verbs program on its host uses it. Objects have the names that the script
// assigns.
type NIC interface {
	Addr() netip.Addr

	// GID returns the index of the NIC's GID in a VLAN, 0 for none, for packets of a network. If it
	// has none, the error is ErrNoVLAN or ErrNoRoCEv1.
	GID(vlan uint16, network packet.Network) (index int, err error)

	Register(name string, o RegionOptions) (Region, error)
	Deregister(name string) error
	ReadMemory(name string, off, n uint64) ([]byte, error)
	WriteMemory(name string, off uint64, data []byte) error
	CreateCQ(name string, entries int) error

	// Arm requests an event for the next completion, or for the next one that is solicited or in
	// error.
	Arm(cq string, solicited bool) error
	// CompletionEvents returns the completion queues that had a completion event since the last
	// call.
	CompletionEvents() (cqs []string, err error)
	CreateSRQ(name string, o SRQOptions) (number uint32, err error)
	CreateQP(name string, o QPOptions) (qpn uint32, err error)
	DestroyQP(name string) error

	// ModifyQP modifies attributes. The NIC resolves the path of the address vector.
	ModifyQP(name string, a nic.QPAttr, mask ib.QPAttrMask) error
	State(name string) (ib.QPState, error)
	Query(name string) (nic.QPAttr, error)
	Resize(queue string, entries int) error // of a completion queue or a shared receive queue
	Limit(srq string, n int) error          // arms the limit event
	PostSend(name string, wr *transport.SendWR) error
	PostRecv(name string, wr *transport.RecvWR) error // to a queue pair or a shared receive queue

	Completions() ([]Completion, error) // since the last call, in order per queue
	Events() ([]Event, error)           // since the last call

	AllocMW(name string, t ib.MWType, pd string) (rkey uint32, err error)
	DeallocMW(name string) error

	// PostBind posts the bind w of a memory window to region mr, or "" to unbind, and returns the
	// window's R_Key from then on. For type 2 that is w.RKey.
	PostBind(qp, mw, mr string, w *transport.SendWR) (rkey uint32, err error)

	OpenXRCD(name string) error
	Attach(qp string, group nic.GID, detach bool) error

	// Counters returns nil if the NIC's counters are not accessible.
	Counters() *nic.Counters
}

// RegionOptions describes a memory region to register.
type RegionOptions struct {
	Size   int
	Fill   byte
	Access ib.Access
	PD     string // each name is another protection domain
	Of     string // a region whose memory to share; then Size is that of the region and Fill is ignored

	// Foreign makes the NIC access the memory as that of another process, without mapping it.
	Foreign bool
}

// A Region is registered memory as work requests and packets address it.
type Region struct {
	Addr       uint64
	Size       int
	LKey, RKey uint32
}

// QPOptions describes a queue pair to create.
type QPOptions struct {
	Type    ib.QPType
	CQ, SRQ string // "": a new completion queue, no SRQ
	XRCD    string // for an XRC target
	PD      string
	SigAll  bool

	MaxSendWR, MaxRecvWR int // 0: the default
}

// SRQOptions describes a shared receive queue to create.
type SRQOptions struct {
	Entries, Limit int
	XRCD, CQ       string // for XRC; "": an ordinary SRQ
}

// A Completion is a polled completion.
type Completion struct {
	QP      string
	Recv    bool // of a receive
	ID      uint64
	Status  ib.WCStatus
	Opcode  ib.WCOpcode
	ByteLen uint32
	Imm     uint32
	SrcQP   uint32
	Flags   ib.WCFlags
}

// An Event is an asynchronous event.
type Event struct {
	Type   ib.EventType
	Object string // the name of the queue concerned, if any
}

// A Destination is the destination of a datagram: the peer of the sending queue pair, through an
// address handle in protection domain PD ("": that of the queue pair).
type Destination struct{ PD string }
