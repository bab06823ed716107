package wire

import (
	"encoding/binary"
	"net/netip"

	"softroce/packet"
)

const (
	etherARP  = 0x0806
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100

	protocolICMP   = 1
	protocolICMPv6 = 58
)

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// input handles one Ethernet frame, whatever it is, and reports whether it is a packet
// for the NIC, which it then puts into rx.
func (l *DgramLink) input(b []byte, rx *RxFrame) bool {
	d, ok := l.forNIC(b, rx)
	switch {
	case ok:
		l.counters.received(len(rx.Head), rx.Dst.Is4())
	case d == answered:
		l.answered++
	default:
		l.counters.Drops[d]++
	}
	return ok
}

// answered says that a frame was no RoCE packet, but of use.
const answered = NumDrops

func (l *DgramLink) forNIC(b []byte, rx *RxFrame) (Drop, bool) {
	if len(b) < packet.EthernetLen {
		return DropTruncated, false
	}
	if b = l.untag(b); !l.vlans[l.vlan()] {
		return DropVLAN, false
	}
	if !l.station([6]byte(b[:6])) {
		return DropMAC, false
	}
	ip := b[packet.EthernetLen:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherARP:
		return l.arp(b), false
	case etherIPv4:
		if len(ip) >= packet.IPv4Len && ip[9] == protocolICMP {
			return l.icmp(b), false
		}
	case etherIPv6:
		if len(ip) >= packet.IPv6Len && ip[6] == protocolICMPv6 {
			return l.icmp6(b), false
		}
	}
	return l.roce(b, rx)
}

// untag takes the tag off a frame, in place.
func (l *DgramLink) untag(b []byte) []byte {
	const tagAt = 12
	l.tagged, l.tci = false, 0
	if len(b) < packet.EthernetLen+packet.VLANLen || binary.BigEndian.Uint16(b[tagAt:]) != etherVLAN {
		return b
	}
	l.tagged, l.tci = true, binary.BigEndian.Uint16(b[tagAt+2:])
	copy(b[packet.VLANLen:], b[:tagAt])
	return b[packet.VLANLen:]
}

// vlan is that of the frame at hand.
func (l *DgramLink) vlan() uint16 { return l.tci & tciVLAN }

// has reports whether an address is the link's own in the VLAN of the frame at hand.
func (l *DgramLink) has(a netip.Addr) bool { return l.own[Station{a, l.vlan()}] }

// station reports whether frames to a MAC concern the link: its own, broadcasts, and
// the groups in which IPv6 asks for its addresses, and those that it has joined.
func (l *DgramLink) station(mac [6]byte) bool {
	switch {
	case mac == l.c.MAC || mac == broadcast || mac == multicastMAC(allNodes) || l.joined(mac):
		return true
	case mac[0] != 0x33:
		return false
	}
	for s := range l.own {
		if s.Addr.Is6() && mac == multicastMAC(solicitedNode(s.Addr)) {
			return true
		}
	}
	return false
}

// roce checks a RoCEv2 frame.
func (l *DgramLink) roce(b []byte, rx *RxFrame) (Drop, bool) {
	f := &l.frame
	if err := packet.ParseFrame(b, f); err != nil {
		return dropOf(err), false
	}
	switch {
	case !f.IPChecksumOK():
		return DropIPChecksum, false
	case !l.has(f.Dst) && !l.member(f.Dst):
		return DropIPAddress, false
	case f.UDPChecksum != 0 && !udpChecksumOK(f):
		return DropUDPChecksum, false
	}
	n := len(f.Transport) - packet.ICRCLen
	*rx = RxFrame{
		Head: f.Transport[:n:n], Src: f.Src, Dst: f.Dst, SrcPort: f.SrcPort, TClass: f.TClass,
		HopLimit: f.HopLimit, FlowLabel: f.FlowLabel, ID: f.ID, SrcMAC: f.SrcMAC,
		Tagged: l.tagged, TCI: l.tci, MayFragment: f.MayFragment, ICRC: f.ICRC(), BadICRC: !f.ICRCOK(),
	}
	return 0, true
}

// An ARP packet for IPv4 on Ethernet (RFC 826), by offset from its beginning.
const (
	arpLen        = 28
	arpOperation  = 6
	arpSenderMAC  = 8
	arpSenderIP   = 14
	arpTargetMAC  = 18
	arpTargetIP   = 24
	arpRequest    = 1
	arpReply      = 2
	arpIPEthernet = 0x0001_0800_06_04 // hardware, protocol, and the lengths of their addresses
)

// arp answers a request for one of the link's addresses and learns from replies.
func (l *DgramLink) arp(b []byte) Drop {
	p := b[packet.EthernetLen:]
	be := binary.BigEndian
	if len(p) < arpLen || be.Uint64(p)>>16 != arpIPEthernet {
		return DropARP
	}
	sender, target := addr4(p[arpSenderIP:]), addr4(p[arpTargetIP:])
	mac := [6]byte(p[arpSenderMAC:])
	ours := l.has(target) && !l.has(sender)
	switch be.Uint16(p[arpOperation:]) {
	case arpRequest:
		// One who announces its own address asks nobody; who knows it wants to hear of it.
		l.near.learn(Station{sender, l.vlan()}, mac, ours)
		if !ours {
			return DropARP
		}
		l.send(l.appendARP(l.reply[:0], l.vlan(), arpReply, mac, target, sender, mac))
	case arpReply:
		l.near.learn(Station{sender, l.vlan()}, mac, false)
	default:
		return DropARP
	}
	return answered
}

func addr4(b []byte) netip.Addr  { return netip.AddrFrom4([4]byte(b)) }
func addr16(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }

// send sends a frame of the link's own. Like any frame it may be lost. From the engine
// alone: others call neighbours.ask.
func (l *DgramLink) send(frame []byte) {
	l.reply = frame // keep the storage
	l.near.send(frame)
}
