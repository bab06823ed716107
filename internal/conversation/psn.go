package conversation

import "softroce/packet"

// Origin is added to the first PSN of a stream when it is unwrapped. It is a multiple of 2^24, and
// so large that PSNs before the first one are positive.
const Origin = 1 << 40

// MaxPSNStep is the largest distance between the PSNs of two packets of the same connection. A
// larger step means that the queue pair number is used by a new connection: starting PSNs are
// random in 24 bits, and no sender has 2^20 PSNs outstanding.
const MaxPSNStep = 1 << 20

// Unwrap returns the unwrapped PSN nearest to an unwrapped one.
func Unwrap(psn uint32, near int64) int64 {
	return near + int64(packet.PSNDiff(psn, Wrap(near)))
}

// Wrap returns the 24 bits of an unwrapped PSN that packets carry.
func Wrap(seq int64) uint32 { return uint32(seq) & packet.PSNMask }
