package verbs

import (
	"context"
	"errors"
	"net"
	"os"
)

var errStub = errors.New("verbs: being written")

// Option changes how Devices and Open reach the daemon.
type Option func(*options)

type options struct {
	socket string
	conn   *net.UnixConn
}

// WithSocket names the daemon's socket; otherwise $SOFTROCE_SOCKET counts, or
// /run/softroce/softroce.sock.
func WithSocket(path string) Option { return func(o *options) { o.socket = path } }

// WithConn uses a connected seqpacket socket, which the Context then owns.
func WithConn(c *net.UnixConn) Option { return func(o *options) { o.conn = c } }

// Devices lists the daemon's NICs.
func Devices(ctx context.Context, opts ...Option) ([]DeviceInfo, error) { return nil, errStub }

// Context is an opened NIC.
type Context struct{}

// Open opens a NIC by its name; "" is the daemon's first one.
func Open(ctx context.Context, device string, opts ...Option) (*Context, error) { return nil, errStub }

func (c *Context) Device() string                                 { return "" }
func (c *Context) QueryDevice() (DeviceAttr, error)               { return DeviceAttr{}, errStub }
func (c *Context) QueryPort() (PortAttr, error)                   { return PortAttr{}, errStub }
func (c *Context) GIDs() ([]GIDEntry, error)                      { return nil, errStub }
func (c *Context) AllocPD() (*PD, error)                          { return nil, errStub }
func (c *Context) AllocBuffer(n int) (*Buffer, error)             { return nil, errStub }
func (c *Context) CreateCompChannel() (*CompChannel, error)       { return nil, errStub }
func (c *Context) CreateCQ(cqe int, ch *CompChannel) (*CQ, error) { return nil, errStub }

// AsyncEvent waits for the next asynchronous event.
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) { return AsyncEvent{}, errStub }

// Err is nil while the daemon serves the Context.
func (c *Context) Err() error   { return errStub }
func (c *Context) Close() error { return errStub }

// Buffer is memory that the NIC can map.
type Buffer struct{}

func (b *Buffer) Bytes() []byte { return nil }
func (b *Buffer) Close() error  { return errStub }

// PD is a protection domain.
type PD struct{}

// RegMR registers mem: in place where it lies in a Buffer of the Context, otherwise as process memory.
func (p *PD) RegMR(mem []byte, access Access) (*MR, error)                  { return nil, errStub }
func (p *PD) RegMRIOVA(mem []byte, iova uint64, access Access) (*MR, error) { return nil, errStub }

// RegMRFile registers length bytes of a file that can be mapped.
func (p *PD) RegMRFile(f *os.File, offset, length, iova uint64, access Access) (*MR, error) {
	return nil, errStub
}
func (p *PD) CreateQP(a QPInitAttr) (*QP, error) { return nil, errStub }
func (p *PD) CreateAH(a AHAttr) (*AH, error)     { return nil, errStub }
func (p *PD) Context() *Context                  { return nil }
func (p *PD) Close() error                       { return errStub }

// MR is a memory region.
type MR struct{}

func (m *MR) Bytes() []byte  { return nil }
func (m *MR) Addr() uint64   { return 0 } // address of its first byte, in SGEs and for peers
func (m *MR) Length() uint64 { return 0 }
func (m *MR) LKey() uint32   { return 0 }
func (m *MR) RKey() uint32   { return 0 }

// SGE names length bytes from offset on.
func (m *MR) SGE(offset, length int) SGE { return SGE{} }
func (m *MR) Close() error               { return errStub }

// AH is an address handle.
type AH struct{}

func (a *AH) Close() error { return errStub }

// CompChannel is where completion events of CQs arrive.
type CompChannel struct{}

// GetEvent waits for an event of one of the channel's CQs, which must have been armed.
func (ch *CompChannel) GetEvent(ctx context.Context) (*CQ, error) { return nil, errStub }
func (ch *CompChannel) Close() error                              { return errStub }

// CQ is a completion queue.
type CQ struct{}

// Poll takes completions, as many as there are and wc holds, and returns how many.
func (q *CQ) Poll(wc []WC) (int, error) { return 0, errStub }

// Arm asks for one event at the next completion (or solicited completion) added.
func (q *CQ) Arm(solicitedOnly bool) error { return errStub }

// Wait returns when the CQ holds a completion: it spins briefly, then arms and blocks.
// For a CQ with a CompChannel of the program's own it fails with EINVAL.
func (q *CQ) Wait(ctx context.Context) error { return errStub }
func (q *CQ) CQE() int                       { return 0 }
func (q *CQ) Close() error                   { return errStub }

// QP is a queue pair.
type QP struct{}

func (q *QP) QPNum() uint32                           { return 0 }
func (q *QP) Cap() QPCap                              { return QPCap{} }
func (q *QP) Modify(a *QPAttr, mask QPAttrMask) error { return errStub }
func (q *QP) Query() (QPAttr, error)                  { return QPAttr{}, errStub }

// PostSend posts all the work requests, or none and returns an error.
func (q *QP) PostSend(wr ...SendWR) error { return errStub }

// PostRecv posts all the work requests, or none and returns an error.
func (q *QP) PostRecv(wr ...RecvWR) error { return errStub }
func (q *QP) Close() error                { return errStub }

// Info is what a peer must know to connect.
type Info struct {
	QPN uint32
	PSN uint32 // of the first packet that we shall send
	GID GID
	LID uint16 // 0 on RoCE
}

// AnyGID lets Info and Connect choose: the first GID of an IPv4 address, else of a global
// IPv6 address, else entry 0; Connect takes the address family of the peer's GID.
const AnyGID = -1

// Info draws the first PSN if none was drawn yet.
func (q *QP) Info(gidIndex int) (Info, error) { return Info{}, errStub }

// ConnectOptions are the attributes that Connect sets.
type ConnectOptions struct {
	GIDIndex        int // AnyGID, or an index
	PathMTU         MTU // 0: the port's active MTU
	Access          Access
	Timeout         uint8
	RetryCnt        uint8
	RNRRetry        uint8
	MinRNRTimer     uint8
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	TrafficClass    uint8
	HopLimit        uint8
	FlowLabel       uint32
}

// DefaultConnectOptions returns what ibv_rc_pingpong and perftest use, with all remote rights.
func DefaultConnectOptions() ConnectOptions {
	return ConnectOptions{
		GIDIndex: AnyGID, Access: AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, MaxRdAtomic: 16, MaxDestRdAtomic: 16, HopLimit: 64,
	}
}

// Connect takes an RC or UC queue pair from RESET to RTS.
func (q *QP) Connect(ctx context.Context, remote Info, o ConnectOptions) error { return errStub }
