package nic

import (
	"context"
	"syscall"

	"softroce/wire"
)

// An AddressVector says where packets go and how: struct ibv_ah_attr.
type AddressVector struct {
	DGID      GID
	SGIDIndex int
	Port      int    // 1
	HopLimit  uint8  // 0 and 1 mean the default, as the Linux core overrides what tools put there
	TClass    uint8  // traffic class or TOS, ECN bits too
	FlowLabel uint32 // 20 bits
	SL        uint8  // 0 to 15; the low 3 bits are the priority in a VLAN tag
	DLID      uint16 // no meaning on Ethernet; kept for ibv_query_qp

	// Path is what Device.ResolvePath returned for this address vector. ModifyQP and
	// CreateAH want it.
	Path *wire.Path
}

// defaultHopLimit is what hosts put in the packets that they originate.
const defaultHopLimit = 64

// ResolvePath finds the way of an address vector: the source address behind its
// SGIDIndex, and the next hop's MAC, for which it may ask the network. It may be called
// from any goroutine but the engine's, and blocks at the longest until ctx ends. Errors are EINVAL
// (address vector is wrong), EHOSTUNREACH and ETIMEDOUT.
func (d *Device) ResolvePath(ctx context.Context, av *AddressVector) (*wire.Path, error) {
	var p *wire.Path
	var err error
	d.engine.Do(func() { p, err = d.path(av) })
	if err != nil {
		return nil, err
	}
	if err := d.iface.Resolve(ctx, p); err != nil {
		no := syscall.EHOSTUNREACH
		if ctx.Err() != nil {
			no = syscall.ETIMEDOUT
		}
		return nil, &Error{Errno: no, Text: err.Error()}
	}
	return p, nil
}

// path makes the path of an address vector, without the next hop.
func (d *Device) path(av *AddressVector) (*wire.Path, error) {
	if err := d.checkVector(av); err != nil {
		return nil, err
	}
	sgid, _ := d.gids.at(av.SGIDIndex)
	p := &wire.Path{
		Src: sgid.gid.Addr(), Dst: av.DGID.Addr(), TClass: av.TClass,
		HopLimit: av.HopLimit, FlowLabel: av.FlowLabel, VLAN: sgid.vlan, Priority: av.SL & 7,
	}
	if p.HopLimit <= 1 {
		p.HopLimit = defaultHopLimit
	}
	if p.Src.Is4() != p.Dst.Is4() {
		return nil, errorf(syscall.EINVAL, "sgid %v and dgid %v are of different address families", p.Src, p.Dst)
	}
	return p, nil
}

func (d *Device) checkVector(av *AddressVector) error {
	switch {
	case av.Port != 1:
		return errorf(syscall.EINVAL, "address vector names port %d of 1", av.Port)
	case av.FlowLabel >= 1<<20:
		return errorf(syscall.EINVAL, "flow label %#x is longer than 20 bits", av.FlowLabel)
	case av.SL > 15:
		return errorf(syscall.EINVAL, "service level %d of 0 to 15", av.SL)
	case av.DGID == GID{}:
		return errorf(syscall.EINVAL, "dgid is zero")
	}
	if _, ok := d.gids.at(av.SGIDIndex); !ok {
		return errorf(syscall.EINVAL, "there is no GID at index %d", av.SGIDIndex)
	}
	return nil
}

// resolved returns the path of av as its owner resolved it, checked against what av says:
// the table may have changed meanwhile.
func (d *Device) resolved(av *AddressVector) (*wire.Path, error) {
	if av.Path == nil {
		return nil, errorf(syscall.EINVAL, "address vector is not resolved")
	}
	p, err := d.path(av)
	if err != nil {
		return nil, err
	}
	if p.Src != av.Path.Src || p.Dst != av.Path.Dst || p.VLAN != av.Path.VLAN {
		return nil, errorf(syscall.EINVAL, "path %v to %v is not that of the address vector", av.Path.Src, av.Path.Dst)
	}
	p.DstMAC = av.Path.DstMAC
	return p, nil
}

// sourcePort returns the UDP source port of a connection, folded from its flow label
// or, where that is 0, from the two QPNs, which both ends know: one flow both ways.
// It is what the Linux driver does.
func sourcePort(label, local, remote uint32) uint16 {
	if label == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		label = uint32(v & 0xfffff)
	}
	return uint16(0xc000 | (label&0x3fff ^ label>>14))
}
