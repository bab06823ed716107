package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"softroce/internal/abi"
	"softroce/packet"
)

// GRH is the first 40 bytes of a UD receive: an IPv6 header, or 20 zero bytes and an IPv4 header;
// of RoCE v1 the GRH of the packet.
type GRH = packet.GRH

// GRHLen is the length of a GRH in bytes. A UD receive needs room for it, and WC.ByteLen includes
// it.
const GRHLen = packet.GRHLen

// AHAttrFromWC returns the address vector for a reply to a received datagram whose receive begins
// with grh: ibv_init_ah_from_wc. The reply goes to WC.SrcQP, from the address that the datagram was
// sent to, with the same version of RoCE.
func (c *Context) AHAttrFromWC(ctx context.Context, wc *WC, grh []byte) (AHAttr, error) {
	if wc.WCFlags&WCWithGRH == 0 || len(grh) < GRHLen {
		return AHAttr{}, &Error{Op: "address from completion", Errno: syscall.EINVAL, Text: "the receive has no GRH"}
	}
	g := (*GRH)(grh)
	if g.Dst().IsMulticast() {
		return AHAttr{}, &Error{Op: "address from completion", Errno: syscall.EINVAL, Text: "the datagram was sent to a multicast group"}
	}
	gids, err := c.GIDs(ctx)
	if err != nil {
		return AHAttr{}, err
	}
	for _, e := range gids {
		if e.RoCEv1 != g.IsIP() && e.GID.Addr() == g.Dst() && e.VLAN == int(wc.CVLAN&0xfff) {
			return AHAttr{SL: uint8(wc.CVLAN >> 13), GRH: GlobalRoute{
				DGID: GIDFromAddr(g.Src()), SGIDIndex: uint8(e.Index), FlowLabel: g.FlowLabel(),
				TrafficClass: g.TClass(), HopLimit: replyHopLimit,
			}}, nil
		}
	}
	return AHAttr{}, fmt.Errorf("address from completion: no GID for %v: %w", g.Dst(), syscall.EADDRNOTAVAIL)
}

// replyHopLimit is the hop limit that libibverbs sets.
const replyHopLimit = 255

// CreateAHFromWC creates the address handle for a reply: ibv_create_ah_from_wc.
func (p *PD) CreateAHFromWC(ctx context.Context, wc *WC, grh []byte) (*AH, error) {
	a, err := p.ctx.AHAttrFromWC(ctx, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(ctx, a)
}

// ToDatagram takes a UD queue pair from RESET to RTS. It receives datagrams with qkey. A Q_Key with
// the highest bit set is a controlled one, which takes root or the daemon's user: EPERM.
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

// MulticastQPN is the RemoteQPN of a datagram to a multicast group.
const MulticastQPN = 0xffffff

// GroupGID returns the GID of a multicast group. The GID of an IPv4 group is the address mapped
// into IPv6.
func GroupGID(group netip.Addr) GID { return GIDFromAddr(group) }

// AttachMcast makes a UD queue pair receive the datagrams of a multicast group, except its own:
// ibv_attach_mcast. The NIC joins the group. Detach the queue pair before closing it. Errors:
// EINVAL for other queue pairs and for a GID that is not multicast; ENOMEM if a limit is reached.
func (q *QP) AttachMcast(ctx context.Context, group GID) error {
	return q.mcast(ctx, "attach to multicast group", abi.OpAttachMcast, group)
}

// DetachMcast detaches the queue pair from a group: ibv_detach_mcast.
func (q *QP) DetachMcast(ctx context.Context, group GID) error {
	return q.mcast(ctx, "detach from multicast group", abi.OpDetachMcast, group)
}

func (q *QP) mcast(ctx context.Context, name string, op uint16, group GID) error {
	if !q.ctx.owns(q) {
		return ErrClosed
	}
	return q.ctx.request(ctx, name, op, abi.McastRequest{QP: q.handle, GID: group})
}
