package verbs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
)

// Info is what a peer needs to connect to a queue pair.
type Info struct {
	QPN uint32
	PSN uint32 // of the first packet that the queue pair sends
	GID GID
	LID uint16 // 0 on RoCE
}

// AnyGID lets Info and Connect choose a GID of RoCE v2: the first one of an IPv4 address, else of a
// global IPv6 address, else the first one. Connect chooses one of the peer's address family.
const AnyGID = -1

// psnChosen in QP.psn means that the other bits are a PSN.
const psnChosen = 1 << 31

// Info returns what the peer needs: the queue pair number, the first PSN that Connect will set
// (random, chosen by the first call), and the GID at gidIndex, or one that is chosen for AnyGID.
func (q *QP) Info(ctx context.Context, gidIndex int) (Info, error) {
	gids, err := q.ctx.GIDs(ctx)
	if err != nil {
		return Info{}, err
	}
	e, err := chooseGID(gids, gidIndex, nil)
	if err != nil {
		return Info{}, err
	}
	return Info{QPN: q.qpn, PSN: q.firstPSN(), GID: e.GID}, nil
}

// SetPSN sets the first PSN that the queue pair sends, in place of a random one. Call it before
// Info.
func (q *QP) SetPSN(psn uint32) { q.psn.Store(psn&0xffffff | psnChosen) }

func (q *QP) firstPSN() uint32 {
	q.psn.CompareAndSwap(0, rand.Uint32()&0xffffff|psnChosen)
	return q.psn.Load() &^ psnChosen
}

// chooseGID returns the entry at index or, for AnyGID, the best one for packets to remote.
func chooseGID(gids []GIDEntry, index int, remote *GID) (GIDEntry, error) {
	var best GIDEntry
	bestRank := 0
	for _, e := range gids {
		if index == e.Index {
			return e, nil
		}
		if r := rank(e.GID, remote); index == AnyGID && !e.RoCEv1 && r > bestRank {
			best, bestRank = e, r
		}
	}
	switch {
	case bestRank > 0:
		return best, nil
	case index == AnyGID && remote != nil:
		return best, fmt.Errorf("the NIC has no GID of the address family of %v: %w", remote.Addr(), syscall.ENETUNREACH)
	}
	return best, fmt.Errorf("no GID at index %d: %w", index, syscall.EINVAL)
}

// rank rates a GID for AnyGID: the highest rank is the best, 0 excludes the GID.
func rank(g GID, remote *GID) int {
	a := g.Addr()
	if remote != nil {
		r := remote.Addr()
		if r.Is4() != a.Is4() {
			return 0
		}
		if r.IsLinkLocalUnicast() && a.IsLinkLocalUnicast() {
			return 4
		}
	}
	switch {
	case a.Is4():
		return 3
	case !a.IsLinkLocalUnicast():
		return 2
	}
	return 1
}

// ConnectOptions are the attributes that Connect sets. Start from DefaultConnectOptions.
type ConnectOptions struct {
	GIDIndex        int // AnyGID, or an index
	PathMTU         MTU // 0: the port's active MTU. Both sides must use the same
	Access          Access
	Timeout         uint8 // local ACK timeout 4.096 µs · 2^Timeout; 0 is none
	RetryCnt        uint8
	RNRRetry        uint8 // 7 is unlimited
	MinRNRTimer     uint8 // code; 12 is 0.64 ms
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	TrafficClass    uint8
	HopLimit        uint8
	FlowLabel       uint32
	SL              uint8  // service level: the priority in a VLAN tag
	PKeyIndex       uint16 // index in Context.PKeys
}

// DefaultConnectOptions returns the values of common test programs: a local ACK timeout of 67 ms,
// seven retries, unlimited RNR retries, 16 outstanding READs and atomics, all remote access rights.
func DefaultConnectOptions() ConnectOptions {
	return ConnectOptions{
		GIDIndex: AnyGID, Access: AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic,
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, MaxRdAtomic: 16, MaxDestRdAtomic: 16, HopLimit: 64,
	}
}

// Connect takes a queue pair of a connected service from RESET or INIT to RTS, connected to remote.
// ctx also bounds the resolution of the peer's address.
func (q *QP) Connect(ctx context.Context, remote Info, o ConnectOptions) error {
	if o.PathMTU == 0 {
		p, err := q.ctx.QueryPort(ctx)
		if err != nil {
			return err
		}
		o.PathMTU = p.ActiveMTU
	}
	gids, err := q.ctx.GIDs(ctx)
	if err != nil {
		return err
	}
	local, err := chooseGID(gids, o.GIDIndex, &remote.GID)
	if err != nil {
		return err
	}
	if QPState(q.state.Load()) == QPSReset {
		if err := q.toInit(ctx, o.Access, o.PKeyIndex); err != nil {
			return err
		}
	}
	if err := q.toRTR(ctx, remote, uint8(local.Index), o); err != nil {
		return err
	}
	return q.toRTS(ctx, o)
}

// ToInit takes a queue pair of a connected service from RESET to INIT, where receives can be posted
// before the peer sends.
func (q *QP) ToInit(ctx context.Context, access Access) error { return q.toInit(ctx, access, 0) }

func (q *QP) toInit(ctx context.Context, access Access, pkeyIndex uint16) error {
	return q.Modify(ctx, &QPAttr{QPState: QPSInit, QPAccessFlags: access, PortNum: 1, PKeyIndex: pkeyIndex},
		QPMaskState|QPMaskPKeyIndex|QPMaskPort|QPMaskAccessFlags)
}

func (q *QP) toRTR(ctx context.Context, remote Info, gidIndex uint8, o ConnectOptions) error {
	a := QPAttr{
		QPState: QPSRTR, PathMTU: o.PathMTU, DestQPNum: remote.QPN, RQPSN: remote.PSN,
		MaxDestRdAtomic: o.MaxDestRdAtomic, MinRNRTimer: o.MinRNRTimer,
		AHAttr: AHAttr{SL: o.SL, GRH: GlobalRoute{
			DGID: remote.GID, SGIDIndex: gidIndex, HopLimit: o.HopLimit,
			TrafficClass: o.TrafficClass, FlowLabel: o.FlowLabel,
		}},
	}
	mask := QPMaskState | QPMaskAV | QPMaskPathMTU | QPMaskDestQPN | QPMaskRQPSN
	if q.qpType == RC || q.qpType == XRCRecv {
		mask |= QPMaskMaxDestRdAtomic | QPMaskMinRNRTimer
	}
	return q.Modify(ctx, &a, mask)
}

func (q *QP) toRTS(ctx context.Context, o ConnectOptions) error {
	a := QPAttr{
		QPState: QPSRTS, SQPSN: q.firstPSN(), Timeout: o.Timeout, RetryCnt: o.RetryCnt, RNRRetry: o.RNRRetry,
		MaxRdAtomic: o.MaxRdAtomic,
	}
	mask := QPMaskState | QPMaskSQPSN
	switch q.qpType {
	case XRCRecv:
		mask |= QPMaskTimeout
	case RC, XRCSend:
		mask |= QPMaskTimeout | QPMaskRetryCnt | QPMaskRNRRetry | QPMaskMaxQPRdAtomic
	}
	return q.Modify(ctx, &a, mask)
}
