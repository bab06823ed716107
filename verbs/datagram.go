package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"softroce/internal/abi"
	"softroce/packet"
)

// AH is an address handle: ibv_ah.
type AH struct {
	ctx    *Context
	handle uint32
}

// CreateAH creates an address handle, for work requests of UD queue pairs.
func (p *PD) CreateAH(ctx context.Context, a AHAttr) (*AH, error) {
	return created(ctx, "create AH", func() (*AH, error) {
		h, err := p.ctx.create("create AH", abi.OpCreateAH, abi.CreateAHRequest{PD: p.handle, AH: a.abi()})
		if err != nil {
			return nil, err
		}
		return adopted(p.ctx, &AH{p.ctx, h})
	})
}

func (a *AH) abandon() {}

// Close destroys the address handle.
func (a *AH) Close(ctx context.Context) error {
	return a.ctx.closeObject(ctx, a, "destroy AH", abi.OpDestroyAH, a.handle, nil)
}

// GRH is what stands in the first 40 bytes of a UD receive: an IPv6 header, or 20 zero bytes and
// an IPv4 header.
type GRH = packet.GRH

// GRHLen is the length of a GRH in bytes: a UD receive has to have room for it, and WC.ByteLen
// counts it.
const GRHLen = packet.GRHLen

// AHAttrFromWC returns the address vector of an answer to a received datagram, whose receive begins
// with grh: ibv_init_ah_from_wc. The answer goes from the address that the datagram came to, to
// WC.SrcQP.
func (c *Context) AHAttrFromWC(ctx context.Context, wc *WC, grh []byte) (AHAttr, error) {
	if wc.WCFlags&WCWithGRH == 0 || len(grh) < GRHLen {
		return AHAttr{}, &Error{Op: "address from completion", Errno: syscall.EINVAL, Text: "there is no GRH"}
	}
	g := (*GRH)(grh)
	if g.Dst().IsMulticast() {
		return AHAttr{}, &Error{Op: "address from completion", Errno: syscall.EINVAL, Text: "the datagram came to a group"}
	}
	gids, err := c.GIDs(ctx)
	if err != nil {
		return AHAttr{}, err
	}
	for _, e := range gids {
		if e.GID.Addr() == g.Dst() && e.VLAN == int(wc.CVLAN&0xfff) {
			return AHAttr{SL: uint8(wc.CVLAN >> 13), GRH: GlobalRoute{
				DGID: GIDFromAddr(g.Src()), SGIDIndex: uint8(e.Index), FlowLabel: g.FlowLabel(),
				TrafficClass: g.TClass(), HopLimit: answerHopLimit,
			}}, nil
		}
	}
	return AHAttr{}, fmt.Errorf("address from completion: no GID for %v: %w", g.Dst(), syscall.EADDRNOTAVAIL)
}

// answerHopLimit is what libibverbs puts there.
const answerHopLimit = 255

// CreateAHFromWC creates the address handle for an answer: ibv_create_ah_from_wc.
func (p *PD) CreateAHFromWC(ctx context.Context, wc *WC, grh []byte) (*AH, error) {
	a, err := p.ctx.AHAttrFromWC(ctx, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(ctx, a)
}

// ToDatagram takes a UD queue pair from RESET to RTS: it receives what comes with qkey, and
// answers to MulticastQPN where it is attached. A Q_Key with the highest bit is a controlled one:
// EPERM, unless the program is root's or the daemon's user's.
func (q *QP) ToDatagram(ctx context.Context, qkey uint32) error {
	err := q.Modify(ctx, &QPAttr{QPState: QPSInit, PortNum: 1, QKey: qkey}, QPMaskState|QPMaskPKeyIndex|QPMaskPort|QPMaskQKey)
	if err != nil {
		return err
	}
	if err := q.Modify(ctx, &QPAttr{QPState: QPSRTR}, QPMaskState); err != nil {
		return err
	}
	return q.Modify(ctx, &QPAttr{QPState: QPSRTS, SQPSN: q.firstPSN()}, QPMaskState|QPMaskSQPSN)
}

// MulticastQPN is the RemoteQPN of a datagram to a group.
const MulticastQPN = 0xffffff

// GroupGID returns the GID of a multicast group: that of an IPv4 group is mapped into IPv6.
func GroupGID(group netip.Addr) GID { return GIDFromAddr(group) }

// AttachMcast makes a UD queue pair receive what is sent to a group: ibv_attach_mcast. The NIC
// joins the group on its network. What the queue pair sends there itself it does not get.
// It must be detached before it is closed. EINVAL: no UD, or no multicast GID; ENOMEM: a limit.
func (q *QP) AttachMcast(ctx context.Context, group GID) error {
	return q.mcast(ctx, "attach to multicast group", abi.OpAttachMcast, group)
}

// DetachMcast ends it: ibv_detach_mcast.
func (q *QP) DetachMcast(ctx context.Context, group GID) error {
	return q.mcast(ctx, "detach from multicast group", abi.OpDetachMcast, group)
}

func (q *QP) mcast(ctx context.Context, name string, op uint16, group GID) error {
	if !q.ctx.owns(q) {
		return ErrClosed
	}
	return q.ctx.request(ctx, name, op, abi.McastRequest{QP: q.handle, GID: group})
}
