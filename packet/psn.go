package packet

// PSNs are 24-bit numbers that wrap: a precedes b if the distance forward from a to b is less than
// 2^23 (IBTA 9.7.2).

// PSNMask masks the 24 bits of a PSN, an MSN or a QPN.
const PSNMask = 0xffffff

// PSNAdd returns the PSN n packets after psn.
func PSNAdd(psn uint32, n int) uint32 { return (psn + uint32(n)) & PSNMask }

// PSNDiff returns the distance from b to a, from -2^23 to 2^23-1.
func PSNDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// PSNCount returns the number of packets, and thus PSNs, of a message of n bytes: at least one.
func PSNCount(n uint32, mtu int) int {
	if n == 0 {
		return 1
	}
	return int((uint64(n) + uint64(mtu) - 1) / uint64(mtu))
}
