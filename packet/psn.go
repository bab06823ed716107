package packet

// PSNs are numbers of 24 bits on a circle: a is before b if the way from a
// forward to b is shorter than 2^23 (IBTA 9.7.2).

// PSNMask has the 24 bits of a PSN, an MSN or a QPN.
const PSNMask = 0xffffff

// PSNAdd returns psn moved n packets onward.
func PSNAdd(psn uint32, n int) uint32 { return (psn + uint32(n)) & PSNMask }

// PSNDiff returns how far a is ahead of b: from -2^23 to 2^23-1.
func PSNDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// PSNCount returns how many packets, and so PSNs, carry n bytes: at least one.
func PSNCount(n uint32, mtu int) int {
	if n == 0 {
		return 1
	}
	return int((uint64(n) + uint64(mtu) - 1) / uint64(mtu))
}
