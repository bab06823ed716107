package nic

import (
	"context"
	"math/bits"
	"syscall"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/wire"
)

// An AddressVector is the destination of packets and their header fields: struct ibv_ah_attr.
type AddressVector struct {
	DGID      GID
	SGIDIndex int
	Port      int    // 1
	HopLimit  uint8  // 0 and 1 mean the default: tools set them, and the Linux core overrides them
	TClass    uint8  // traffic class or TOS, including the ECN bits
	FlowLabel uint32 // 20 bits
	SL        uint8  // 0 to 15; the low 3 bits are the priority in a VLAN tag
	DLID      uint16 // unused on Ethernet; returned by ibv_query_qp

	// StaticRate is a code of enum ibv_rate: packets take at most that rate. 0 means no limit, and
	// so does a rate that the port does not exceed.
	StaticRate uint8

	// Path is the result of Device.ResolvePath for this address vector. ModifyQP and CreateAH
	// require it.
	Path *wire.Path
}

// defaultHopLimit is the usual TTL and hop limit of hosts.
const defaultHopLimit = 64

// ResolvePath resolves an address vector: the source address of its SGIDIndex, and the MAC of the
// next hop, for which it may send neighbor requests. It may be called from any goroutine but the
// engine's, and blocks until ctx ends at most. Errors are EINVAL (invalid address vector),
// EOPNOTSUPP (a GID of RoCE v1 on a link without it), EHOSTUNREACH and ETIMEDOUT.
func (d *Device) ResolvePath(ctx context.Context, av *AddressVector) (*wire.Path, error) {
	return d.ResolveReplyPath(ctx, av, func(*wire.Path) (mac [6]byte, ok bool) { return mac, false })
}

// ResolveReplyPath is ResolvePath for a destination that may have sent something. sender then
// returns the MAC from which that came, zeros if the link does not know MACs. It is used as long as
// the next hop is not known otherwise: ResolveReplyPath does not wait then.
func (d *Device) ResolveReplyPath(ctx context.Context, av *AddressVector, sender func(*wire.Path) (mac [6]byte, ok bool)) (*wire.Path, error) {
	var p *wire.Path
	var err error
	d.engine.Do(func() { p, err = d.path(av) })
	if err != nil {
		return nil, err
	}
	mac, ok := sender(p)
	if ok && mac == [6]byte{} {
		return p, nil
	}
	p.DstMAC = mac
	if err := d.iface.Resolve(ctx, p); err != nil {
		no := syscall.EHOSTUNREACH
		if ctx.Err() != nil {
			no = syscall.ETIMEDOUT
		}
		return nil, &Error{Errno: no, Text: err.Error()}
	}
	return p, nil
}

// path returns the path of an address vector, without the next hop's MAC.
func (d *Device) path(av *AddressVector) (*wire.Path, error) {
	if err := d.checkVector(av); err != nil {
		return nil, err
	}
	sgid, _ := d.gids.at(av.SGIDIndex)
	p := &wire.Path{
		Src: sgid.gid.Addr(), Dst: av.DGID.Addr(), TClass: av.TClass,
		HopLimit: av.HopLimit, FlowLabel: av.FlowLabel, VLAN: sgid.vlan, Priority: av.SL & 7,
	}
	if sgid.roceV1 {
		p.Network = packet.RoCEv1
	}
	if rate := ib.StaticRate(av.StaticRate); rate < d.congestion.line {
		p.Rate = rate
	}
	if p.HopLimit <= 1 {
		p.HopLimit = defaultHopLimit
	}
	if !p.FamiliesMatch() {
		return nil, errorf(syscall.EINVAL, "SGID %v and DGID %v have different address families", p.Src, p.Dst)
	}
	return p, nil
}

func (d *Device) checkVector(av *AddressVector) error {
	switch {
	case av.Port != 1:
		return errorf(syscall.EINVAL, "port %d of the address vector: must be 1", av.Port)
	case av.FlowLabel >= 1<<20:
		return errorf(syscall.EINVAL, "flow label %#x exceeds 20 bits", av.FlowLabel)
	case av.SL > 15:
		return errorf(syscall.EINVAL, "service level %d: must be 0 to 15", av.SL)
	case !ib.IsStaticRate(av.StaticRate):
		return errorf(syscall.EINVAL, "static rate %d is not assigned", av.StaticRate)
	case av.DGID == GID{}:
		return errorf(syscall.EINVAL, "DGID is zero")
	}
	switch e, ok := d.gids.at(av.SGIDIndex); {
	case !ok:
		return errorf(syscall.EINVAL, "no GID at index %d", av.SGIDIndex)
	case e.roceV1 && !d.link.Capabilities().RoCEv1:
		return errorf(syscall.EOPNOTSUPP, "the GID at index %d is of RoCE v1, which the link of %s does not carry: want one of RoCE v2", av.SGIDIndex, d.name)
	}
	return nil
}

// resolved returns av.Path after checking it against av: the GID table may have changed since it
// was resolved.
func (d *Device) resolved(av *AddressVector) (*wire.Path, error) {
	if av.Path == nil {
		return nil, errorf(syscall.EINVAL, "address vector is not resolved")
	}
	p, err := d.path(av)
	if err != nil {
		return nil, err
	}
	if p.Network != av.Path.Network || p.Src != av.Path.Src || p.Dst != av.Path.Dst || p.VLAN != av.Path.VLAN {
		return nil, errorf(syscall.EINVAL, "path %v to %v does not match the address vector", av.Path.Src, av.Path.Dst)
	}
	p.DstMAC = av.Path.DstMAC
	return p, nil
}

// A pathTable lets the connections of a device share paths that are equal, which are not changed
// once they are in use. So the paths of many queue pairs take few cache lines, and links see by the
// pointer that a path is the one of the packet before. Each slot has the path that was put there
// last.
type pathTable [128]*wire.Path

// share returns a path that equals p.
func (t *pathTable) share(p *wire.Path) *wire.Path {
	host := p.Dst.As16()
	slot := &t[(int(p.SrcPort)^int(host[len(host)-1]))%len(t)]
	if *slot == nil || **slot != *p {
		*slot = p
	}
	return *slot
}

// A device with manyQPs queue pairs or more has about half of flowsOfMany to flowsOfMany source
// ports for all connections together: enough for the paths between two hosts. A link sends
// consecutive packets of one port and length as one super-packet, so neighbors that send little
// each cost about as much as one that sends much. The fewer ports, the longer are the runs of
// neighbors: 15 packets of path MTU 4096 fit into one super-packet.
const (
	manyQPs     = 64
	flowsOfMany = 16
)

// connectionPort returns the UDP source port of a connection.
func (d *Device) connectionPort(label, local, remote uint32) uint16 {
	group := 0
	if d.qps.n >= manyQPs {
		group = bits.Len(uint(d.qps.n / flowsOfMany))
	}
	return sourcePort(label, local>>group, remote>>group)
}

// sourcePort returns the UDP source port of a connection: the folded flow label or, if that is 0,
// the folded product of the two QPNs. Both ends compute the same port, as the Linux driver does.
func sourcePort(label, local, remote uint32) uint16 {
	if label == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		label = uint32(v & 0xfffff)
	}
	return uint16(0xc000 | (label&0x3fff ^ label>>14))
}
