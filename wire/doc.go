// Package wire sends and receives RoCEv2 packets.
//
// A Link is a NIC's port to a medium. PacketLink, UDPLink, XDPLink and DgramLink end in sockets;
// FabricLink ends at another emulated NIC of the process. FaultLink, ShapedLink, CaptureLink,
// LoopbackLink and InjectorLink are middleware: each wraps a link and is one. An Interface is the
// network interface below a NIC: its addresses, its MTU, and the resolution of neighbors.
//
// No method of a link blocks, and none allocates per packet. Bytes from the network are not
// trusted: links check the headers up to UDP, and count each dropped frame under one Drop. A link
// that has an ICRC checks it and marks packets; the NIC decides.
package wire
