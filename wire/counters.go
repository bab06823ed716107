package wire

import (
	"fmt"

	"softroce/packet"
)

// LinkCounters counts what a link carried and what it threw away. They belong to
// the goroutine that calls the link's methods, as the link does.
type LinkCounters struct {
	TxPackets, RxPackets uint64
	TxBytes, RxBytes     uint64 // of IP packets, ICRC included
	Drops                [NumDrops]uint64
}

// A Counted link tells what it counted, as all links of this package do. Middleware
// answers for itself and the link within it.
type Counted interface {
	Counters() *LinkCounters
}

// countersOf returns the counters of l, or empty ones.
func countersOf(l Link) *LinkCounters {
	if c, ok := l.(Counted); ok {
		return c.Counters()
	}
	return &LinkCounters{}
}

// A Drop is the reason why a link threw a frame away; each frame thrown away counts
// under one. A frame with a wrong ICRC is not: it is handed on, marked, and its NIC
// counts it.
type Drop uint8

const (
	// Received frames, in the order in which they are checked.
	DropTruncated   Drop = iota // ends before its headers do, or before the length they tell
	DropMAC                     // for another station
	DropVLAN                    // of a VLAN that the link has no address in
	DropEtherType               // neither IP nor what the link answers itself
	DropARP                     // not about this station, or not to be understood
	DropIPHeader                // wrong version, header length, or an IPv6 extension header
	DropIPChecksum              // of the IPv4 header
	DropIPAddress               // for another host
	DropFragment                // a part of an IPv4 packet
	DropIPProtocol              // not UDP
	DropICMP                    // nothing that the link answers, or not to be understood
	DropUDPPort                 // not for RoCE's port
	DropUDPLength               // disagrees with the IP length, or leaves no room for BTH and ICRC
	DropUDPChecksum             // neither 0 nor right
	DropOverrun                 // the link's receive queue was full

	// Frames to send.
	DropUnreachable // nobody has the destination address
	DropTooLong     // longer than the link's MTU
	DropSend        // the medium refused it

	DropFault // by a rule of a fault program, in either direction

	NumDrops
)

var dropNames = [NumDrops]string{
	DropTruncated:   "truncated",
	DropMAC:         "other_mac",
	DropVLAN:        "other_vlan",
	DropEtherType:   "ether_type",
	DropARP:         "arp",
	DropIPHeader:    "ip_header",
	DropIPChecksum:  "ip_checksum",
	DropIPAddress:   "ip_address",
	DropFragment:    "ip_fragment",
	DropIPProtocol:  "ip_protocol",
	DropICMP:        "icmp",
	DropUDPPort:     "udp_port",
	DropUDPLength:   "udp_length",
	DropUDPChecksum: "udp_checksum",
	DropOverrun:     "overrun",
	DropUnreachable: "unreachable",
	DropTooLong:     "too_long",
	DropSend:        "send_failed",
	DropFault:       "fault",
}

// String returns the name under which metrics show the reason.
func (d Drop) String() string {
	if d < NumDrops {
		return dropNames[d]
	}
	return fmt.Sprintf("Drop(%d)", uint8(d))
}

// Lengths of the headers that a link puts around a RoCEv2 packet.
const (
	udpLen  = 8
	ipv4Len = 20
	ipv6Len = 40

	ethernetLen = 14
	vlanTagLen  = 4
)

// ipLen returns the length of the IP packet around n bytes from BTH to pad.
func ipLen(n int, is4 bool) int {
	if is4 {
		return n + ipv4Len + udpLen + packet.ICRCLen
	}
	return n + ipv6Len + udpLen + packet.ICRCLen
}

func (c *LinkCounters) sent(f *TxFrame) {
	c.TxPackets++
	c.TxBytes += uint64(ipLen(f.Len, f.Path.Dst.Is4()))
}

func (c *LinkCounters) sentAll(batch []TxFrame) {
	for i := range batch {
		c.sent(&batch[i])
	}
}

// dropTx counts a frame that was taken and could not be sent.
func (c *LinkCounters) dropTx(f *TxFrame, d Drop) {
	c.Drops[d]++
	f.Dropped = true
}

func (c *LinkCounters) received(n int, is4 bool) {
	c.RxPackets++
	c.RxBytes += uint64(ipLen(n, is4))
}

// sum makes c the sum of two others.
func (c *LinkCounters) sum(a, b *LinkCounters) {
	*c = *a
	c.TxPackets += b.TxPackets
	c.RxPackets += b.RxPackets
	c.TxBytes += b.TxBytes
	c.RxBytes += b.RxBytes
	for i, n := range b.Drops {
		c.Drops[i] += n
	}
}

// receivedAll counts the frames of a batch.
func (c *LinkCounters) receivedAll(batch []RxFrame) {
	for i := range batch {
		f := &batch[i]
		n := len(f.Head)
		for _, t := range f.Tail {
			n += len(t)
		}
		c.received(n, f.Dst.Is4())
	}
}
