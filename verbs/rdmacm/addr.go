package rdmacm

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"softroce/internal/abi"
)

// abiAddr converts an address. The zone of a link-local one names an interface.
func abiAddr(a netip.AddrPort) (o abi.CMAddr) {
	ip := a.Addr()
	switch {
	case !ip.IsValid():
		return o
	case ip.Is4():
		v := ip.As4()
		o.Family = syscall.AF_INET
		copy(o.Addr[:], v[:])
	default:
		o.Family, o.Addr = syscall.AF_INET6, ip.As16()
		if f, err := net.InterfaceByName(ip.Zone()); err == nil {
			o.Scope = uint32(f.Index)
		}
	}
	o.Port = a.Port()
	return o
}

func addrPort(a abi.CMAddr) netip.AddrPort {
	switch a.Family {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[:4])), a.Port)
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), a.Port)
	}
	return netip.AddrPort{}
}

// milliseconds rounds up.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Millisecond-1)/time.Millisecond, 0), 1<<31))
}
