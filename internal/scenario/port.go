package scenario

import (
	"fmt"
	"net/netip"

	"softroce/internal/testbed"
)

// cmdPort pulls out the cable of the NIC under test, or puts it in: port down|up.
func (s *script) cmdPort(args *arguments) error {
	how, err := args.next("down or up")
	if err != nil {
		return err
	}
	if how != "down" && how != "up" {
		return fmt.Errorf("%q must be down or up", how)
	}
	p, ok := s.testbed.(testbed.Port)
	if !ok {
		return testbed.ErrNoFaults
	}
	p.SetUp(how == "up")
	return args.end()
}

// cmdAddress gives the NIC under test one more address, or takes it away: address add|remove ADDRESS.
func (s *script) cmdAddress(args *arguments) error {
	how, err := args.next("add or remove")
	if err != nil {
		return err
	}
	if how != "add" && how != "remove" {
		return fmt.Errorf("%q must be add or remove", how)
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

// What the IPv4 addresses of scripts stand for where IPv6 is spoken: a group of global scope, and a neighbour of simulated NICs.
var (
	ipv6Group = [16]byte{0xff, 0x0e}
	ipv6Other = [16]byte{0x20, 0x01, 0x0d, 0xb8}
)

// address reads an address. Where the NIC under test has an IPv6 one an IPv4 address stands for the IPv6 address that ends in it.
func (s *script) parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("%q must be an address", text)
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
