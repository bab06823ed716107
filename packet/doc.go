// Package packet encodes and decodes RoCEv2 packets: the InfiniBand base and extended transport
// headers, the opcode table, the invariant CRC, and the Ethernet, IP and UDP headers that enclose
// them.
//
// It does no I/O and keeps no state. Functions allocate only to report an error. Every field of a
// header survives decoding and encoding, reserved bits included. Package rocelayers offers the same
// as a gopacket layer.
package packet
