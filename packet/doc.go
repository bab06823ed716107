// Package packet knows the bytes of RoCEv2: the InfiniBand base and extended
// transport headers, the table of opcodes, the invariant CRC, and the Ethernet,
// IP and UDP headers around them. It does no I/O, keeps no state and, where it
// does not fail, allocates nothing. Package rocelayers, below, is its face to gopacket.
package packet
