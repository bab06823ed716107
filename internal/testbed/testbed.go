package testbed

import (
	"errors"
	"net/netip"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// A Testbed is a NIC under test, and the network that its cable leads to.
type Testbed interface {
	Network

	// NIC returns the NIC under test, or a second one, that the first can be connected to.
	// Where there is no second one the error is ErrOneNIC.
	NIC(second bool) (NIC, error)
	Close() error
}

// A Network is what lies between the NIC under test and the peer that the script plays.
type Network interface {
	// Now is the time since the testbed was set up.
	Now() time.Duration

	// Run lets time pass until done, or until the time has come, whichever is first; whatever
	// is under way at that moment arrives. It returns what done does. A nil done is never so.
	Run(until time.Duration, done func() bool) bool

	// Settle lets everything arrive that is under way without letting time pass for its own
	// sake. On a network that cannot tell what is under way it waits for done, as long as
	// that may take there, and briefly where done is nil. It returns what done does.
	Settle(done func() bool) bool

	// PeerQPN is the number of the first queue pair that the script plays; others follow.
	PeerQPN() uint32

	// Slack is by how much something may come sooner or later than it should, because the
	// network's time is not the NIC's. Both are 0 where it is.
	Slack() (early, late time.Duration)

	// Send puts a hand-made packet on the cable.
	Send(f *wire.TxFrame) error

	// Frames reports whether SendFrame is possible: nil or ErrNoFrames.
	Frames() error

	// SendFrame puts a whole Ethernet frame on the cable, which is one of a link whose way it goes.
	SendFrame(way wire.InjectAs, frame []byte) error

	// Peer is the address that hand-made packets come from.
	Peer() netip.Addr

	// Path is the way of hand-made packets to the NIC under test.
	Path(to netip.Addr) (*wire.Path, error)

	// Join makes what is sent to a multicast group reach the script.
	Join(group netip.Addr) error

	// Fault adds a rule in the language of docs/reference/fault-language.md for what the NIC under test
	// sends and receives from now on. Where that is not possible the error is ErrNoFaults.
	Fault(rule string) error
}

// A Port is a testbed that can change the network interface of the NIC under test.
type Port interface {
	// SetUp plugs in the cable, or unplugs it.
	SetUp(up bool)

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
	ErrNoFrames      = errors.New("the testbed can send RoCEv2 packets only")
	ErrNoVLAN        = errors.New("the NIC under test has no address in the VLAN")
	ErrLink          = errors.New("no link to a live NIC") // also where its description is wrong
)

// A NIC is a NIC as the verbs program on it has it in hand. Objects have the names that the
// script gives them.
type NIC interface {
	Addr() netip.Addr

	// GID returns the index of the NIC's address in a VLAN, 0 for none. Where it has none there the error is ErrNoVLAN.
	GID(vlan uint16) (index int, err error)

	Register(name string, o RegionOptions) (Region, error)
	Deregister(name string) error
	ReadMemory(name string, off, n uint64) ([]byte, error)
	WriteMemory(name string, off uint64, data []byte) error
	CreateCQ(name string, entries int) error

	// Arm asks for a notice of the next completion, or of the next that is solicited or in error.
	Arm(cq string, solicited bool) error
	Notices() (cqs []string, err error) // since the last call
	CreateSRQ(name string, o SRQOptions) (number uint32, err error)
	CreateQP(name string, o QPOptions) (qpn uint32, err error)
	DestroyQP(name string) error

	// ModifyQP changes attributes; the address vector's path is the NIC's affair.
	ModifyQP(name string, a nic.QPAttr, mask ib.QPAttrMask) error
	State(name string) (ib.QPState, error)
	Query(name string) (nic.QPAttr, error)
	Resize(queue string, entries int) error // of completions, or a shared receive queue
	Limit(srq string, n int) error          // at which it gives an event
	PostSend(name string, wr *transport.SendWR) error
	PostRecv(name string, wr *transport.RecvWR) error // to a queue pair or a shared receive queue

	Completions() ([]Completion, error) // since the last call, of all queues, in order per queue
	Events() ([]Event, error)           // since the last call

	AllocMW(name string, t ib.MWType, pd string) (rkey uint32, err error)
	DeallocMW(name string) error

	// PostBind posts the bind w of a memory window to a place in the region mr, "" to unbind, and returns
	// the key that the window has from then on. Of type 2 that is w.RKey.
	PostBind(qp, mw, mr string, w *transport.SendWR) (rkey uint32, err error)

	OpenXRCD(name string) error
	Attach(qp string, group nic.GID, detach bool) error

	// Counters returns nil where the NIC does not tell.
	Counters() *nic.Counters
}

// RegionOptions says what a memory region is made of.
type RegionOptions struct {
	Size   int
	Fill   byte
	Access ib.Access
	PD     string // of another name than the default "" it is another one
	Of     string // a region whose memory it is to have as well; Size is that one's, and Fill is not used

	// Foreign says that it is memory which the NIC reaches only as that of another process, without mapping it.
	Foreign bool
}

// A Region is registered memory as work requests and packets name it.
type Region struct {
	Addr       uint64
	Size       int
	LKey, RKey uint32
}

// QPOptions says what a queue pair is made of.
type QPOptions struct {
	Type    ib.QPType
	CQ, SRQ string // "": one of its own
	XRCD    string // of an XRC target
	PD      string
	SigAll  bool

	MaxSendWR, MaxRecvWR int // 0: what is usual
}

// SRQOptions says what a shared receive queue is made of.
type SRQOptions struct {
	Entries, Limit int
	XRCD, CQ       string // of XRC; "": not of XRC
}

// A Completion is a polled completion.
type Completion struct {
	QP      string
	Recv    bool // of the receive queue
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
	Object string // the name of the queue it is about, if any
}

// A Destination is the destination of a datagram: the peer of queue pair QP, through an address
// handle in protection domain PD ("": that of the queue pair).
type Destination struct{ QP, PD string }
