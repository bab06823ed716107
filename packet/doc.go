// Package packet encodes and decodes RoCE and InfiniBand packets: the base and extended transport
// headers, the opcode table, the invariant CRC, and what encloses them: Ethernet, IP and UDP
// headers of RoCE v2, Ethernet header and GRH of RoCE v1, or InfiniBand's LRH, GRH and variant CRC.
//
// It does no I/O and keeps no state. Functions allocate only to report an error. Every field of a
// header survives decoding and encoding, reserved bits included. Package rocelayers offers the same
// as a gopacket layer.
package packet
