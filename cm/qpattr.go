package cm

import (
	"net/netip"
	"slices"
	"syscall"

	"softroce/internal/ib"
	"softroce/packet"
)

// QPAttr is the attributes with which a queue pair enters a state; Mask names those that are set.
type QPAttr struct {
	ib.QPAttr
	Mask      ib.QPAttrMask
	AH        AddressVector
	PKeyIndex uint16
}

// InitQPAttr returns the attributes with which a queue pair of the identifier enters INIT, RTR or
// RTS. The error is EINVAL if the identifier is not in a state that has them.
func (id *ID) InitQPAttr(state ib.QPState) (QPAttr, error) {
	a := QPAttr{QPAttr: ib.QPAttr{State: state}, Mask: ib.QPMaskState}
	if id.nic == nil {
		return a, errnoError(syscall.EINVAL, "the identifier is not bound to a device")
	}
	if state == ib.QPSInit {
		i, ok := id.nic.PKeyIndex(id.partition())
		if !ok {
			return a, errnoError(syscall.EINVAL, "%s is no longer a member of the partition of P_Key %#04x", id.nic.Name(), id.route.PKey)
		}
		a.PKeyIndex = uint16(i)
	}
	switch {
	case id.datagrams():
		return id.initDatagrams(a)
	case state == ib.QPSInit:
		a.Mask |= ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess
		if id.req != nil {
			a.Access = ib.AccessRemoteWrite
			if id.responderResources() > 0 {
				a.Access |= ib.AccessRemoteRead | ib.AccessRemoteAtomic
			}
		}
		return a, nil
	case id.req == nil || !id.passive && id.rep == nil:
		return a, errnoError(syscall.EINVAL, "the identifier is %v and has no peer", id.state)
	case state == ib.QPSRTR:
		id.attrRTR(&a)
		return a, nil
	case state == ib.QPSRTS:
		id.attrRTS(&a)
		return a, nil
	}
	return a, errnoError(syscall.EINVAL, "queue pair state %d, want INIT, RTR or RTS", uint32(state))
}

// partition returns the P_Key of the identifier: that of its route, if it has one.
func (id *ID) partition() uint16 {
	if id.route.PKey != 0 {
		return id.route.PKey
	}
	return id.nic.PKey()
}

func (id *ID) initDatagrams(a QPAttr) (QPAttr, error) {
	switch a.State {
	case ib.QPSInit:
		a.Mask |= ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskQKey
		if a.QKey = id.qkey; a.QKey == 0 {
			a.QKey = UDPQKey
		}
	case ib.QPSRTR:
	case ib.QPSRTS:
		a.Mask |= ib.QPMaskSQPSN
		a.SQPSN = id.psn
	default:
		return a, errnoError(syscall.EINVAL, "queue pair state %d, want INIT, RTR or RTS", uint32(a.State))
	}
	return a, nil
}

func (id *ID) attrRTR(a *QPAttr) {
	a.Mask |= ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN
	a.AH, a.PathMTU, a.RQPSN = id.addressVector(), ib.MTU(id.req.PathMTU).Bytes(), id.psn
	a.DestQPN = id.req.LocalQPN
	if !id.passive {
		a.DestQPN = id.rep.LocalQPN
	}
	if id.qpType == ib.QPTypeRC || id.qpType == ib.QPTypeXRCRecv {
		a.Mask |= ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer
		a.MaxDestRDAtomic, a.MinRNRTimer = id.responderResources(), 0 // 655 ms, as in Linux
	}
}

func (id *ID) attrRTS(a *QPAttr) {
	a.Mask |= ib.QPMaskSQPSN
	if a.SQPSN = id.req.StartingPSN; !id.passive {
		a.SQPSN = id.rep.StartingPSN
	}
	if id.qpType == ib.QPTypeUC {
		return
	}
	a.Mask |= ib.QPMaskTimeout
	if id.qpType != ib.QPTypeXRCRecv { // an XRC target sends no requests
		a.Mask |= ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic
	}
	a.RetryCount, a.RNRRetry, a.MaxRDAtomic = id.req.RetryCount, id.req.RNRRetryCount, id.initiatorDepth()
	a.Timeout = id.req.Primary.ACKTimeout
	if !id.passive {
		a.RNRRetry = id.rep.RNRRetryCount
		if id.ackTimeout == 0 {
			a.Timeout = ackTimeout(id.rep.TargetACKDelay, PacketLife)
		}
	}
}

// responderResources is how many READs and atomics the peer may have outstanding at this side.
func (id *ID) responderResources() uint8 {
	switch {
	case id.passive:
		return id.req.InitiatorDepth
	case id.rep != nil:
		return id.rep.InitiatorDepth
	}
	return id.req.ResponderResources
}

// initiatorDepth is how many READs and atomics this side may have outstanding at the peer.
func (id *ID) initiatorDepth() uint8 {
	if id.passive {
		return id.req.ResponderResources
	}
	return id.rep.ResponderResources
}

// Path is the route of an identifier: some fields of struct ibv_sa_path_rec.
type Path struct {
	SGID, DGID GID
	AddressVector
	MTU        uint8
	PacketLife uint8
	PKey       uint16
}

// Path returns the route, false if it is not resolved.
func (id *ID) Path() (Path, bool) {
	if id.nic == nil || !id.route.Dst.IsValid() {
		return Path{}, false
	}
	return Path{SGID: id.route.Src.As16(), DGID: id.route.Dst.As16(), AddressVector: id.addressVector(), MTU: id.nic.MTU(), PacketLife: PacketLife,
		PKey: id.partition()}, true
}

// An Option is an option of an identifier: RDMA_OPTION_ID_…
type Option uint32

// Options.
const (
	OptionTOS        Option = 0
	OptionReuseAddr  Option = 1
	OptionAFOnly     Option = 2
	OptionACKTimeout Option = 3
)

// SetOption sets an option. Errors are EINVAL (wrong state or value) and ENOSYS (no such option).
func (id *ID) SetOption(o Option, v uint32) error {
	switch o {
	case OptionTOS:
		if v > 255 {
			return errnoError(syscall.EINVAL, "type of service %d exceeds 255", v)
		}
		id.tos = uint8(v)
	case OptionReuseAddr:
		if id.state != idIdle {
			return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
		}
		id.reuse = v != 0
	case OptionAFOnly:
		if id.state != idIdle && id.state != idBound {
			return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
		}
		id.afOnly = v != 0
	case OptionACKTimeout:
		if id.qpType != ib.QPTypeRC && id.qpType != ib.QPTypeXRCSend || v > 31 {
			return errnoError(syscall.EINVAL, "ACK timeout code %d exceeds 31", v)
		}
		id.ackTimeout = uint8(v)
	default:
		return errnoError(syscall.ENOSYS, "no option %d", o)
	}
	return nil
}

// Join joins a multicast group: EventMulticastJoin reports the address vector and Q_Key. The
// program attaches its queue pair itself. Errors are EINVAL, EADDRINUSE (it is a member) and
// ENOMEM.
func (id *ID) Join(a netip.Addr, cookie uint64) error {
	a = a.WithZone("")
	switch {
	case !id.datagrams() || id.nic == nil:
		return errnoError(syscall.EINVAL, "multicast needs an identifier for datagrams that is bound to a device")
	case !a.IsMulticast():
		return errnoError(syscall.EINVAL, "%v is not a multicast address", a)
	case slices.Contains(id.groups, a):
		return errnoError(syscall.EADDRINUSE, "the identifier is already a member of %v", a)
	case len(id.groups) >= maxGroups:
		return errnoError(syscall.ENOMEM, "the identifier has the maximum of %d multicast groups", maxGroups)
	}
	if err := id.session.checkEvents(); err != nil {
		return err
	}
	own, err := id.memberAddress(a)
	if err != nil {
		return err
	}
	id.groups = append(id.groups, a)
	qkey := id.qkey
	if qkey == 0 {
		qkey = UDPQKey
	}
	gid, index := own.group(a)
	id.post(&Event{Type: EventMulticastJoin, Cookie: cookie, UD: &UDParam{QPN: 0xffffff, QKey: qkey,
		AH: AddressVector{DGID: gid, SGIDIndex: uint8(index), HopLimit: 1, TClass: id.tos}}})
	return nil
}

// group returns the GID of a multicast group and the index of the member's own GID. As in Linux,
// RoCE v1 has IPv4 groups below ff0e::ffff:0:0.
func (own *Address) group(a netip.Addr) (gid [16]byte, index int) {
	if gid = a.As16(); own.Network != packet.RoCEv1 {
		return gid, own.GIDIndex
	}
	if a.Is4() {
		gid[0], gid[1] = 0xff, 0x0e
	}
	return gid, own.RoCEv1Index
}

// memberAddress returns the source address of datagrams to a group.
func (id *ID) memberAddress(group netip.Addr) (Address, error) {
	if own, ok := findAddress(id.nic, station{id.local.Addr(), id.local.VLAN}); ok && own.Addr().Is4() == group.Is4() {
		return own, nil
	}
	for _, own := range id.nic.Addresses() {
		if own.Addr().Is4() == group.Is4() {
			return own, nil
		}
	}
	return Address{}, errnoError(syscall.EADDRNOTAVAIL, "%s has no address of the family of %v", id.nic.Name(), group)
}

// Leave leaves a multicast group. The error is EADDRNOTAVAIL.
func (id *ID) Leave(a netip.Addr) error {
	n := len(id.groups)
	id.groups = slices.DeleteFunc(id.groups, func(g netip.Addr) bool { return g == a.WithZone("") })
	if len(id.groups) == n {
		return errnoError(syscall.EADDRNOTAVAIL, "the identifier is not a member of %v", a)
	}
	return nil
}
