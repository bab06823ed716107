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

// load implements rxDecoder. A message is an Ethernet frame. Frames of ARP and ICMP are handled
// here.
func (l *DgramLink) load(m rxMessage) (Drop, bool) {
	l.loaded = false
	d, ok := l.dispatch(m.data)
	if d == handled {
		l.handled++
		return 0, true
	}
	l.loaded = ok
	return d, ok
}

// handled is the result for frames that are not RoCEv2 and were answered or learned from.
const handled = NumDrops

// dispatch handles a frame by its type. It reports whether the frame is a RoCEv2 packet for the
// NIC, or why not.
func (l *DgramLink) dispatch(b []byte) (Drop, bool) {
	if len(b) < packet.EthernetLen {
		return DropTruncated, false
	}
	if b = l.untag(b); !l.vlans[l.vlan()] {
		return DropVLAN, false
	}
	if !l.acceptsMAC([6]byte(b[:6])) {
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
	return l.checkRoCE(b)
}

// untag removes the VLAN tag of a frame, in place, and notes it.
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

// vlan returns the VLAN ID of the current frame.
func (l *DgramLink) vlan() uint16 { return l.tci & tciVLAN }

// has reports whether an address is the link's own in the VLAN of the current frame.
func (l *DgramLink) has(a netip.Addr) bool { return l.localStations[Station{a, l.vlan()}] }

// acceptsMAC reports whether the link takes frames to a MAC: its own, broadcast, all-nodes, the
// solicited-node groups of its addresses, and the groups that it joined.
func (l *DgramLink) acceptsMAC(mac [6]byte) bool {
	switch {
	case mac == l.c.MAC || mac == broadcast || mac == multicastMAC(allNodes) || l.joined(mac):
		return true
	case mac[0] != 0x33:
		return false
	}
	for s := range l.localStations {
		if s.Addr.Is6() && mac == multicastMAC(solicitedNode(s.Addr)) {
			return true
		}
	}
	return false
}

// checkRoCE parses a RoCEv2 frame. It reports whether the frame is for the NIC, or why not.
func (l *DgramLink) checkRoCE(b []byte) (Drop, bool) {
	f := &l.frame
	if err := packet.ParseFrame(b, f); err != nil {
		return dropOf(err), false
	}
	switch {
	case !f.IPChecksumOK():
		return DropIPChecksum, false
	case !l.has(f.Dst) && !l.member(f.Dst), !familiesMatch(f.Network, f.Src, f.Dst):
		return DropIPAddress, false
	case f.UDPChecksum != 0 && !udpChecksumOK(f):
		return DropUDPChecksum, false
	}
	return 0, true
}

// next implements rxDecoder.
func (l *DgramLink) next(rx *RxFrame) bool {
	if !l.loaded {
		return false
	}
	l.loaded = false
	f := &l.frame
	n := len(f.Transport) - packet.ICRCLen
	*rx = RxFrame{
		Head: f.Transport[:n:n], Network: f.Network, Src: f.Src, Dst: f.Dst, SrcPort: f.SrcPort, TClass: f.TClass,
		HopLimit: f.HopLimit, FlowLabel: f.FlowLabel, ID: f.ID, SrcMAC: f.SrcMAC,
		Tagged: l.tagged, TCI: l.tci, MayFragment: f.MayFragment, ICRC: f.ICRC(), BadICRC: !f.ICRCOK(),
	}
	return true
}

// runts implements rxDecoder: packet.ParseFrame rejects packets without BTH and ICRC.
func (l *DgramLink) runts() uint64 { return 0 }

// Offsets in an ARP packet for IPv4 on Ethernet (RFC 826).
const (
	arpLen        = 28
	arpOperation  = 6
	arpSenderMAC  = 8
	arpSenderIP   = 14
	arpTargetMAC  = 18
	arpTargetIP   = 24
	arpRequest    = 1
	arpReply      = 2
	arpIPEthernet = 0x0001_0800_06_04 // hardware type, protocol type, and the lengths of their addresses
)

// arp answers requests for the link's addresses and learns from requests and replies.
func (l *DgramLink) arp(b []byte) Drop {
	p := b[packet.EthernetLen:]
	be := binary.BigEndian
	if len(p) < arpLen || be.Uint64(p)>>16 != arpIPEthernet {
		return DropARP
	}
	sender, target := addr4(p[arpSenderIP:]), addr4(p[arpTargetIP:])
	mac := [6]byte(p[arpSenderMAC:])
	own := l.has(target) && !l.has(sender)
	switch be.Uint16(p[arpOperation:]) {
	case arpRequest:
		// A gratuitous ARP has the sender as target. It updates a known neighbor.
		l.neighbors.learn(Station{sender, l.vlan()}, mac, own)
		if !own {
			return DropARP
		}
		l.send(l.appendARP(l.reply[:0], l.vlan(), arpReply, mac, target, sender, mac))
	case arpReply:
		l.neighbors.learn(Station{sender, l.vlan()}, mac, false)
	default:
		return DropARP
	}
	return handled
}

func addr4(b []byte) netip.Addr  { return netip.AddrFrom4([4]byte(b)) }
func addr16(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }

// send sends a frame of the link itself, which may be lost. It is for the engine's goroutine; other
// goroutines call neighbors.solicit.
func (l *DgramLink) send(frame []byte) {
	l.reply = frame // keep the buffer
	l.neighbors.send(frame)
}
