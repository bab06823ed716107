package wire

import (
	"fmt"
	"net/netip"

	"softroce/packet"
)

// LinkCounters count what a link carried and dropped. They belong to the goroutine that calls the
// link's methods.
type LinkCounters struct {
	TxPackets, RxPackets uint64
	TxBytes, RxBytes     uint64 // of IP packets, ICRC included; RoCE v1: from the GRH on
	Drops                [NumDrops]uint64
}

// A Counted link has counters, as all links of this package have. Those of middleware include the
// wrapped link's.
type Counted interface {
	Counters() *LinkCounters
}

// linkCounters returns the counters of l, or zeros if it has none.
func linkCounters(l Link) *LinkCounters {
	if c, ok := l.(Counted); ok {
		return c.Counters()
	}
	return &LinkCounters{}
}

// A Drop is the reason why a link dropped a frame. Each dropped frame counts under one reason. A
// frame with a wrong ICRC is not dropped: it is passed on, marked, and the NIC counts it.
type Drop uint8

const (
	// Received frames, in the order in which they are checked.
	DropTruncated   Drop = iota // shorter than its headers or than the length in them
	DropMAC                     // for another station
	DropVLAN                    // of a VLAN in which the link has no address
	DropEtherType               // neither IP nor a protocol that the link handles
	DropARP                     // malformed ARP, or not about this station
	DropIPHeader                // wrong version, header length, or an IPv6 extension header
	DropIPChecksum              // of the IPv4 header
	DropIPAddress               // for another host
	DropFragment                // a fragment of an IPv4 packet
	DropIPProtocol              // not UDP
	DropICMP                    // malformed ICMP, or a message that the link does not handle
	DropUDPPort                 // not for port 4791
	DropUDPLength               // differs from the IP length, or is too short for BTH and ICRC
	DropUDPChecksum             // neither 0 nor correct
	DropOverrun                 // the link's receive queue was full

	// Frames to send.
	DropUnreachable // no station has the destination address
	DropTooLong     // longer than the link's MTU
	DropSend        // rejected by the medium

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

// String returns the reason's name in metrics.
func (d Drop) String() string {
	if d < NumDrops {
		return dropNames[d]
	}
	return fmt.Sprintf("Drop(%d)", uint8(d))
}

// Lengths of the headers around a packet.
const (
	udpLen  = 8
	ipv4Len = 20
	ipv6Len = 40

	ethernetLen = 14
	vlanTagLen  = 4
)

// ipLen returns the length of an IP packet to dst with n bytes from BTH to pad; of RoCE v1, the
// length from GRH to ICRC.
func ipLen(n int, network packet.Network, dst netip.Addr) int {
	switch {
	case network == packet.RoCEv1:
		return n + packet.GRHLen + packet.ICRCLen
	case dst.Is4():
		return n + ipv4Len + udpLen + packet.ICRCLen
	}
	return n + ipv6Len + udpLen + packet.ICRCLen
}

// IPLen returns the length of the frame's IP packet; of RoCE v1, that from GRH to ICRC.
func (f *TxFrame) IPLen() int { return ipLen(f.Len, f.Path.Network, f.Path.Dst) }

// ipLen returns the length of the frame's IP packets, of which a run has several. Those after the
// first one have no extended headers.
func (f *RxFrame) ipLen() int {
	return ipLen(f.Len(), f.Network, f.Dst) + int(f.Run.Repeat)*ipLen(packet.BTHLen, f.Network, f.Dst)
}

func (c *LinkCounters) addTx(f *TxFrame) {
	c.TxPackets++
	c.TxBytes += uint64(f.IPLen())
	if f.Run.Repeat > 0 {
		c.addTxRest(f)
	}
}

// addTxRest counts the packets of a run after the first one.
func (c *LinkCounters) addTxRest(f *TxFrame) {
	c.TxPackets += uint64(f.Run.Repeat)
	c.TxBytes += uint64(f.IPBytes() - f.IPLen())
}

func (c *LinkCounters) addTxBatch(batch []TxFrame) {
	for i := range batch {
		c.addTx(&batch[i])
	}
}

// dropTx counts a frame that was taken and could not be sent.
func (c *LinkCounters) dropTx(f *TxFrame, d Drop) {
	c.Drops[d]++
	f.Dropped = true
}

func (c *LinkCounters) addRx(f *RxFrame) {
	c.RxPackets += uint64(f.Run.Packets())
	c.RxBytes += uint64(f.ipLen())
}

// Add adds the counters of another link.
func (c *LinkCounters) Add(o *LinkCounters) { c.setSum(c, o) }

// setSum sets c to the sum of a and b.
func (c *LinkCounters) setSum(a, b *LinkCounters) {
	*c = *a
	c.TxPackets += b.TxPackets
	c.RxPackets += b.RxPackets
	c.TxBytes += b.TxBytes
	c.RxBytes += b.RxBytes
	for i, n := range b.Drops {
		c.Drops[i] += n
	}
}

// addRxBatch counts the frames of a batch as received.
func (c *LinkCounters) addRxBatch(batch []RxFrame) {
	for i := range batch {
		c.addRx(&batch[i])
	}
}
