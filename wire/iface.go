package wire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Errors of interfaces, to match with errors.Is. The errors returned name the interface and the
// address.
var (
	ErrNoInterface = errors.New("no such interface")
	ErrNoRoute     = errors.New("no route")
	ErrUnreachable = errors.New("neighbor does not respond")
)

// An Interface is the network interface of a NIC: its addresses, which become GIDs, its MAC and
// MTU, and address resolution. All methods may be called from any goroutine. Only Resolve may
// block.
type Interface interface {
	Name() string
	MAC() [6]byte
	MTU() int // largest IP packet in bytes
	Up() bool // administratively up, with a carrier

	// Addresses returns the usable addresses and their prefixes, in the interface's order. The
	// slice is never modified.
	Addresses() []netip.Prefix

	// OnChange adds a function that is called, on another goroutine, after addresses, MAC, MTU or
	// state changed. It must not block.
	OnChange(func())

	// OnNeighbor adds a function that is called, on another goroutine, when the next hop of a
	// resolved station has a new MAC. A Path to dst with another MAC is then out of date. The
	// function must not block.
	OnNeighbor(func(dst Station, mac [6]byte))

	// Resolve sets p.DstMAC to the MAC of the next hop from p.Src to p.Dst in p.VLAN. It blocks
	// until the neighbor replies or ctx ends. Its errors are ErrNoRoute and ErrUnreachable. If
	// p.DstMAC is set, it is where frames of p.Dst came from: it is kept, without waiting, while
	// the next hop is not known otherwise. Calling it again for a peer that stopped responding
	// makes the kernel verify a stale neighbor.
	Resolve(ctx context.Context, p *Path) error

	// ProbeNeighbor checks the next hop of a resolved station that has stopped responding: the
	// next hop may have a new MAC without having announced it. If it has, the functions of
	// OnNeighbor are called. ProbeNeighbor does not block, and limits its own rate.
	ProbeNeighbor(dst Station)
}

// probeInterval is the shortest interval between two probes of a neighbor.
const probeInterval = 50 * time.Millisecond

// checkPath returns an error for a path that no interface can resolve.
func checkPath(name string, p *Path) error {
	switch {
	case !p.Dst.IsValid() || p.Dst.IsUnspecified() || p.Dst.Is4In6():
		return fmt.Errorf("%v through %s: %w", p.Dst, name, ErrNoRoute)
	case !p.FamiliesMatch():
		return fmt.Errorf("%v from %v through %s: %w between address families", p.Dst, p.Src, name, ErrNoRoute)
	}
	return nil
}

// multicastMAC returns the group MAC of a multicast address (RFC 1112, RFC 2464).
func multicastMAC(a netip.Addr) [6]byte {
	b := a.As16()
	if a.Is4() {
		return [6]byte{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

type staticInterface struct {
	name  string
	mac   [6]byte
	mtu   int
	addrs []netip.Prefix
	vlans []VLANAddress
}

// StaticInterface returns an interface that never changes, for fabrics and simulations. It is up,
// and every address is a neighbor.
func StaticInterface(name string, mac [6]byte, mtu int, addrs ...netip.Prefix) Interface {
	return &staticInterface{name: name, mac: mac, mtu: mtu, addrs: addrs}
}

// StaticTrunk is StaticInterface with VLANs.
func StaticTrunk(name string, mac [6]byte, mtu int, vlans []VLANAddress, addrs ...netip.Prefix) Trunk {
	return &staticInterface{name, mac, mtu, addrs, vlans}
}

func (s *staticInterface) Name() string                      { return s.name }
func (s *staticInterface) MAC() [6]byte                      { return s.mac }
func (s *staticInterface) MTU() int                          { return s.mtu }
func (s *staticInterface) Up() bool                          { return true }
func (s *staticInterface) Addresses() []netip.Prefix         { return s.addrs }
func (s *staticInterface) VLANAddresses() []VLANAddress      { return s.vlans }
func (s *staticInterface) OnChange(func())                   {}
func (s *staticInterface) OnNeighbor(func(Station, [6]byte)) {}
func (s *staticInterface) ProbeNeighbor(Station)             {}
func (s *staticInterface) Resolve(_ context.Context, p *Path) error {
	if err := checkPath(s.name, p); err != nil {
		return err
	}
	p.DstMAC = s.neighbor(p.station())
	return nil
}

// neighbor returns the MAC of an address. Only captures show it, so it just has to differ between
// addresses.
func (s *staticInterface) neighbor(to Station) [6]byte {
	if Owns(s)(to) {
		return s.mac
	}
	dst := to.Addr
	if dst.IsMulticast() {
		return multicastMAC(dst)
	}
	b := dst.As16()
	if b[11] == 0xff && b[12] == 0xfe { // EUI-64: the MAC is in the address
		return [6]byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
	}
	return [6]byte{0x02, 0x00, b[12], b[13], b[14], b[15]}
}
