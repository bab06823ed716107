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

// openSlices opens the links of n slices in their order, and closes them if one fails.
func openSlices[L Link](n int, open func(opened []L) (L, error)) (links []L, err error) {
	for range n {
		l, err := open(links)
		if err != nil {
			for _, l := range links {
				l.Close()
			}
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}
