package nic

import (
	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/transport"
)

// DeviceAttr is struct ibv_device_attr, without the fields that do not apply.
type DeviceAttr struct {
	FWVer           string
	NodeGUID        uint64
	SysImageGUID    uint64
	MaxMRSize       uint64
	PageSizeCap     uint64
	VendorID        uint32
	VendorPartID    uint32
	HWVer           uint32
	MaxQP           int
	MaxQPWR         int
	DeviceCapFlags  uint32
	OnDemandPaging  bool
	CapFlagsEx      uint64 // device_cap_flags_ex: DeviceCapFlags and the upper half
	MaxSGE          int
	MaxSGERd        int
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxMW           int
	MaxPD           int
	MaxQPRDAtomic   int // as responder, per QP
	MaxResRDAtomic  int // as responder, of the device
	MaxQPInitRDAtom int // as requester, per QP
	AtomicCap       int // enum ibv_atomic_cap
	MaxAH           int
	MaxSRQ          int
	MaxSRQWR        int
	MaxSRQSGE       int
	MaxMcastGroups  int
	MaxMcastQPs     int // per group
	MaxPKeys        int
	LocalCAACKDelay int
	PhysPortCnt     int
	MaxInlineData   int

	MaxMcastAttached int // QPs in all groups

	CoreClock     uint64 // kHz, of completion timestamps; 0: there are none
	TimestampMask uint64 // valid bits of completion timestamps
}

// Bits of DeviceCapFlags: enum ibv_device_cap_flags.
const (
	capBadPKeyCounter = 1 << 1
	capBadQKeyCounter = 1 << 2
	capPortActive     = 1 << 10
	capSysImageGUID   = 1 << 11
	capRCRNRNAKGen    = 1 << 12
	capSRQResize      = 1 << 13
	capMemWindow      = 1 << 17
	capXRC            = 1 << 20
	capMemMgtExt      = 1 << 21 // local invalidate and SEND with invalidate; only kernels register by work request
	capMemWindow2B    = 1 << 24

	capFlags = capBadPKeyCounter | capBadQKeyCounter | capPortActive | capSysImageGUID | capRCRNRNAKGen | capSRQResize |
		capMemWindow | capXRC | capMemMgtExt | capMemWindow2B

	// The upper half: enum ib_uverbs_device_cap_flags.
	capFlushGlobal = 1 << 38
	capAtomicWrite = 1 << 40
)

const (
	vendorID     = 0xffffff // no vendor, as the Linux driver reports
	vendorPartID = 0x5f70ce
	fwVersion    = "1.0.0"

	coreClock = 1_000_000 // kHz: timestamps are in nanoseconds
)

// Query returns the device's attributes.
func (d *Device) Query() DeviceAttr {
	l, i := &d.limits, &d.identity
	flags := d.capFlags()
	a := DeviceAttr{
		FWVer: i.FWVer, NodeGUID: d.guid, SysImageGUID: d.guid,
		MaxMRSize: l.MaxMRSize, PageSizeCap: l.PageSizes,
		VendorID: i.VendorID, VendorPartID: i.VendorPartID, HWVer: i.HWVer,
		MaxQP: l.MaxQP, MaxQPWR: l.MaxQPWR, MaxSGE: l.MaxSGE, MaxSGERd: l.MaxReadSGE,
		DeviceCapFlags: uint32(flags), CapFlagsEx: flags, OnDemandPaging: d.has(CapOnDemandPaging), MaxMW: l.MaxMW,
		MaxCQ: l.MaxCQ, MaxCQE: l.MaxCQE, MaxMR: l.MaxMR, MaxPD: l.MaxPD,
		MaxQPRDAtomic: l.MaxRDAtomic, MaxResRDAtomic: l.MaxResRDAtomic, MaxQPInitRDAtom: l.MaxInitRDAtomic,
		AtomicCap: ib.AtomicHCA, MaxAH: l.MaxAH, MaxSRQ: l.MaxSRQ, MaxSRQWR: l.MaxSRQWR, MaxSRQSGE: l.MaxSRQSGE,
		MaxMcastGroups: l.MaxMcastGroups, MaxMcastQPs: l.MaxMcastQPs, MaxMcastAttached: l.MaxMcastAttached,
		MaxPKeys: l.MaxPKeys, LocalCAACKDelay: l.LocalACKDelay, PhysPortCnt: i.Ports, MaxInlineData: l.MaxInline,
		CoreClock: coreClock, TimestampMask: 1<<64 - 1,
	}
	if !d.has(CapAtomics) {
		a.AtomicCap = ib.AtomicNone
	}
	if !d.has(CapMemoryWindows) {
		a.MaxMW = 0
	}
	if !d.has(CapMulticast) {
		a.MaxMcastGroups, a.MaxMcastQPs, a.MaxMcastAttached = 0, 0, 0
	}
	if !d.has(CapSRQ) {
		a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0
	}
	if !d.has(CapTimestamps) {
		a.CoreClock, a.TimestampMask = 0, 0
	}
	return a
}

// QueryDevice returns the device's attributes as far as this context may use them: a program may
// take each number as what it can create.
func (c *Context) QueryDevice() DeviceAttr {
	a, l := c.device.Query(), &c.limits
	limit := func(v *int, max int) {
		if max > 0 {
			*v = min(*v, max)
		}
	}
	limit(&a.MaxQP, l.QPs)
	limit(&a.MaxCQ, l.CQs)
	limit(&a.MaxMR, l.MRs)
	limit(&a.MaxMW, l.MWs)
	limit(&a.MaxPD, l.PDs)
	limit(&a.MaxAH, l.AHs)
	limit(&a.MaxSRQ, l.SRQs)
	limit(&a.MaxMcastGroups, l.Groups)
	limit(&a.MaxMcastQPs, l.Groups)
	limit(&a.MaxMcastAttached, l.Groups)
	a.MaxResRDAtomic = min(a.MaxResRDAtomic, a.MaxQP*a.MaxQPRDAtomic)
	if l.RegisteredBytes > 0 {
		a.MaxMRSize = min(a.MaxMRSize, l.RegisteredBytes)
	}
	if l.RingBytes > 0 {
		for a.MaxCQE > 1 && uint64(abi.RingSize(roundSlots(a.MaxCQE), abi.CQESize)) > l.RingBytes {
			a.MaxCQE /= 2
		}
	}
	return a
}

// PortAttr is struct ibv_port_attr, without the fields that do not apply.
type PortAttr struct {
	State        ib.PortState
	PhysState    int
	MaxMTU       int // bytes
	ActiveMTU    int // bytes
	GIDTableLen  int
	PKeyTableLen int
	CapFlags     uint32
	MaxMsgSize   uint32
	BadPKeyCntr  uint32
	QKeyViolCntr uint32
	ActiveWidth  ib.Width
	ActiveSpeed  ib.Speed
	LinkLayer    int // enum: 2 is Ethernet
	Netdev       string
}

// QueryPort returns the attributes of port 1.
func (d *Device) QueryPort() PortAttr {
	a := PortAttr{
		State: ib.PortActive, PhysState: ib.PhysLinkUp, MaxMTU: 4096, ActiveMTU: d.activeMTU(),
		GIDTableLen: d.limits.GIDTableSize, PKeyTableLen: len(d.pkeys),
		CapFlags: ib.PortCapIPBasedGIDs, MaxMsgSize: maxMessage, BadPKeyCntr: d.allBadPKeys(),
		QKeyViolCntr: uint32(d.counters.Drops[transport.DropQKey]),
		ActiveWidth:  d.identity.ActiveWidth, ActiveSpeed: d.identity.ActiveSpeed, LinkLayer: ib.LinkLayerEthernet, Netdev: d.iface.Name(),
	}
	if !d.up {
		a.State, a.PhysState = ib.PortDown, ib.PhysDisabled
	}
	return a
}

// QueryPortNumber returns the attributes of a port by its number; EINVAL if the device does not
// have it.
func (d *Device) QueryPortNumber(port int) (PortAttr, error) {
	if err := d.checkPort(port); err != nil {
		return PortAttr{}, err
	}
	a := d.QueryPort()
	if port == 1 {
		return a, nil
	}
	a.Netdev, a.BadPKeyCntr, a.QKeyViolCntr = "", 0, 0
	a.State, a.PhysState = ib.PortDown, ib.PhysDisabled
	if d.secondUp {
		a.State, a.PhysState = ib.PortActive, ib.PhysLinkUp
	}
	return a, nil
}

// mtuHeadroom is what the Linux driver reserves for headers when it derives the active MTU from the
// interface's. Both ends must get the same result.
const mtuHeadroom = 80

// activeMTU returns the largest path MTU that fits the interface and the link.
func (d *Device) activeMTU() int {
	n := min(d.iface.MTU(), d.link.Capabilities().MTU) - mtuHeadroom
	for mtu := 4096; mtu > 256; mtu /= 2 {
		if mtu <= n {
			return mtu
		}
	}
	return 256
}
