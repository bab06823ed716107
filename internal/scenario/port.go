package scenario

import (
	"fmt"
	"net/netip"

	"softroce/internal/testbed"
)

// cmdPort changes the state of the port of the NIC under test: port down|up.
func (s *script) cmdPort(args *arguments) error {
	how, err := args.next("down or up")
	if err != nil {
		return err
	}
	if how != "down" && how != "up" {
		return fmt.Errorf("%q: want down or up", how)
	}
	p, ok := s.testbed.(testbed.Port)
	if !ok {
		return testbed.ErrNoFaults
	}
	p.SetPort(how == "up")
	return args.end()
}

// cmdAddress adds an address to the NIC under test or removes it: address add|remove ADDRESS.
func (s *script) cmdAddress(args *arguments) error {
	how, err := args.next("add or remove")
	if err != nil {
		return err
	}
	if how != "add" && how != "remove" {
		return fmt.Errorf("%q: want add or remove", how)
	}
	text, err := args.next("an address")
	if err != nil {
		return err
	}
	a, err := s.parseAddress(text)
	if err != nil {
		return err
	}
	b, ok := s.testbed.(testbed.Port)
	if !ok {
		return testbed.ErrNoFaults
	}
	b.SetAddress(a, how == "add")
	return args.end()
}

// The prefixes that translate the IPv4 addresses of a script to IPv6: for groups, of global scope,
// and for unicast addresses of simulated NICs.
var (
	ipv6Group = [16]byte{0xff, 0x0e}
	ipv6Other = [16]byte{0x20, 0x01, 0x0d, 0xb8}
)

// parseAddress parses an address. If the NIC under test uses IPv6, it translates an IPv4 address to
// an IPv6 address that ends in it.
func (s *script) parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%q: want an IP address", text)
	}
	if !a.Is4() || s.testbed.Peer().Is4() {
		return a, nil
	}
	b := ipv6Other
	if a.IsMulticast() {
		b = ipv6Group
	}
	four := a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b), nil
}
