package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// An Identity is the model that a device reports to be. A field that is zero means softroce's own
// value. What a model limits is in Limits.
type Identity struct {
	VendorID     uint32
	VendorPartID uint32
	HWVer        uint32
	FWVer        string
	HCAType      string // hca_type of sysfs
	BoardID      string // board_id of sysfs
	NodeDesc     string // node_desc of sysfs
	ActiveSpeed  ib.Speed
	ActiveWidth  ib.Width
	VendorErrs   map[ib.WCStatus]uint32 // vendor_err of error completions
	Hidden       Capability             // what the model lacks: the device refuses it
	CounterSet   CounterSet             // hw_counters of sysfs
	Ports        int                    // 1 or 2; 0 means 1. No cable is in port 2, which has no GIDs
	RoCEv1GIDs   RoCEv1GIDs             // of the GID table; with RoCEv1GIDsBefore also those that the link cannot use
	PCI          *PCI                   // nil: the device is not on a PCI bus
}

// PCI describes the PCI function that a device reports to be.
type PCI struct {
	Vendor          uint16
	Device          uint16
	SubsystemVendor uint16
	SubsystemDevice uint16
	Class           uint32
	Driver          string
	NUMANode        int    // at most MaxNUMANode; -1: none
	LocalCPUs       string // local_cpulist, such as 0-15,32-47; "" means all
	LinkSpeed       string // current_link_speed and max_link_speed, such as "32.0 GT/s PCIe"
	LinkWidth       int    // current_link_width and max_link_width
}

// MaxNUMANode is the highest number of a NUMA node: Linux has at most 1024.
const MaxNUMANode = 1023

// A CounterSet is the kernel driver whose files hw_counters of sysfs has; "" means a file for each
// counter of softroce.
type CounterSet string

// Counter sets.
const (
	CountersMLX5 CounterSet = "mlx5_ib"
	CountersRXE  CounterSet = "rdma_rxe"
)

// A Capability is a set of features that a device may lack.
type Capability uint

// Features.
const (
	CapAtomics Capability = 1 << iota
	CapAtomicWrite
	CapDeviceMemory
	CapFlush
	CapLocalInvalidate // and SEND with invalidate; without it, a device also lacks CapMemoryWindows2B
	CapMemoryWindows   // without it, a device also lacks CapMemoryWindows2B
	CapMemoryWindows2B // memory windows of type 2B
	CapMulticast
	CapOnDemandPaging
	CapSRQ // without it, a device also lacks CapSRQResize and CapXRC
	CapSRQResize
	CapTimestamps // of completions, and the clock that they are of
	CapXRC
)

// withDefaults returns i with softroce's own values where it has none.
func (i Identity) withDefaults() Identity {
	if i.VendorID == 0 {
		i.VendorID = vendorID
	}
	if i.VendorPartID == 0 {
		i.VendorPartID = vendorPartID
	}
	if i.FWVer == "" {
		i.FWVer = fwVersion
	}
	if i.ActiveSpeed == 0 {
		i.ActiveSpeed = ib.SpeedEDR
	}
	if i.Ports == 0 {
		i.Ports = 1
	}
	if i.ActiveWidth == 0 {
		i.ActiveWidth = ib.Width4X
	}
	if i.Hidden&CapSRQ != 0 {
		i.Hidden |= CapSRQResize | CapXRC
	}
	if i.Hidden&(CapLocalInvalidate|CapMemoryWindows) != 0 { // one of type 2B is invalidated before it is bound again
		i.Hidden |= CapMemoryWindows2B
	}
	return i
}

// has reports whether the device has a feature.
func (d *Device) has(c Capability) bool { return d.identity.Hidden&c == 0 }

// require returns EOPNOTSUPP if the device lacks a feature.
func (d *Device) require(c Capability, what string) error {
	if d.has(c) {
		return nil
	}
	return errorf(syscall.EOPNOTSUPP, "%s has no %s", d.name, what)
}

// Identity returns the model that the device reports to be.
func (d *Device) Identity() Identity { return d.identity }

// capFlags returns device_cap_flags_ex without the features that the device lacks.
func (d *Device) capFlags() uint64 {
	flags := uint64(capFlags | capFlushGlobal | capAtomicWrite)
	for feature, bits := range map[Capability]uint64{
		CapAtomicWrite: capAtomicWrite, CapFlush: capFlushGlobal, CapLocalInvalidate: capMemMgtExt,
		CapMemoryWindows: capMemWindow, CapMemoryWindows2B: capMemWindow2B, CapSRQResize: capSRQResize, CapXRC: capXRC,
	} {
		if !d.has(feature) {
			flags &^= bits
		}
	}
	return flags
}

// refusedKinds returns the operations that the device's queue pairs neither send nor execute.
func (d *Device) refusedKinds() (k transport.KindSet) {
	if !d.has(CapAtomics) {
		k = k.With(packet.KindCompareSwap).With(packet.KindFetchAdd)
	}
	if !d.has(CapAtomicWrite) {
		k = k.With(packet.KindAtomicWrite)
	}
	if !d.has(CapFlush) {
		k = k.With(packet.KindFlush)
	}
	return k
}

// sendOps are the operations that a device may lack.
var sendOps = []struct {
	ops     ib.SendOps
	feature Capability
	what    string
}{
	{ib.SendOpsAtomicCmpAndSwp | ib.SendOpsAtomicFetchAndAdd, CapAtomics, "atomics"},
	{ib.SendOpsAtomicWrite, CapAtomicWrite, "ATOMIC WRITE"},
	{ib.SendOpsFlush, CapFlush, "FLUSH"},
	{ib.SendOpsLocalInv | ib.SendOpsSendWithInv, CapLocalInvalidate, "invalidation"},
	{ib.SendOpsBindMW, CapMemoryWindows2B, "memory windows of type 2B"},
}

// checkSendOps returns EOPNOTSUPP if the device lacks one of the operations.
func (d *Device) checkSendOps(ops ib.SendOps) error {
	for _, o := range sendOps {
		if ops&o.ops != 0 {
			if err := d.require(o.feature, o.what); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkAccess returns EOPNOTSUPP if a registration requires a feature that the device lacks.
func (d *Device) checkAccess(access ib.Access) error {
	if access&ib.AccessOnDemand != 0 {
		if err := d.require(CapOnDemandPaging, "on-demand paging"); err != nil {
			return err
		}
	}
	if access&(ib.AccessFlushGlobal|ib.AccessFlushPersistent) != 0 {
		return d.require(CapFlush, "FLUSH")
	}
	return nil
}
