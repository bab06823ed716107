package wire

import "encoding/binary"

// SliceOf returns the number of the slice that serves a queue pair, of a NIC that n engines drive.
// Slice 0 has the management QPs.
func SliceOf(qpn uint32, n int) int {
	if qpn <= managementQPs {
		return 0
	}
	return int(qpn % uint32(n))
}

// managementQPs are QP 0 and QP 1.
const managementQPs = 1

// Offset and bits of the destination QP in a BTH.
const (
	destQPOffset = 4
	destQPMask   = 1<<24 - 1
)

// destQP returns the destination queue pair of a packet that begins with its BTH.
func destQP(head []byte) uint32 {
	return binary.BigEndian.Uint32(head[destQPOffset:]) & destQPMask
}
