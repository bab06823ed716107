package packet

import (
	"fmt"
	"math/bits"
)

// A Syndrome is the first byte of the AETH (IBTA 9.7.5.2).
type Syndrome uint8

// Syndromes: the class in the upper three bits, a value in the lower five.
const (
	SyndromeACK          Syndrome = 0x00 // with the credit code as value
	SyndromeRNR          Syndrome = 0x20 // with the RNR timer code as value
	NAKSequence          Syndrome = 0x60
	NAKInvalidRequest    Syndrome = 0x61
	NAKRemoteAccess      Syndrome = 0x62
	NAKRemoteOperational Syndrome = 0x63
	NAKInvalidRD         Syndrome = 0x64
	syndromeClass        Syndrome = 0xe0
	SyndromeValue        Syndrome = 0x1f
	CreditsUnlimited              = 0x1f // credit code: no end-to-end credits
)

// IsACK reports whether s is an ACK, whose value is the credit code.
func (s Syndrome) IsACK() bool { return s&syndromeClass == SyndromeACK }

// IsRNR reports whether s is an RNR NAK, whose value is the timer code.
func (s Syndrome) IsRNR() bool { return s&syndromeClass == SyndromeRNR }

// IsNAK reports whether s is a NAK other than RNR.
func (s Syndrome) IsNAK() bool { return s&syndromeClass == 0x60 }

func (s Syndrome) String() string {
	switch {
	case s.IsACK() && s&SyndromeValue == CreditsUnlimited:
		return "ACK"
	case s.IsACK():
		return fmt.Sprintf("ACK(credits %d)", Credits(uint8(s)))
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK(timer %d)", s&SyndromeValue)
	}
	switch s {
	case NAKSequence:
		return "NAK(PSN sequence error)"
	case NAKInvalidRequest:
		return "NAK(invalid request)"
	case NAKRemoteAccess:
		return "NAK(remote access error)"
	case NAKRemoteOperational:
		return "NAK(remote operational error)"
	case NAKInvalidRD:
		return "NAK(invalid RD request)"
	}
	return fmt.Sprintf("Syndrome(%#02x)", uint8(s))
}

// rnrTimer has the RNR NAK timer values in nanoseconds by timer code (IBTA 9.7.5.2.8, table 45).
var rnrTimer = [32]int64{
	655360e3, 10e3, 20e3, 30e3, 40e3, 60e3, 80e3, 120e3,
	160e3, 240e3, 320e3, 480e3, 640e3, 960e3, 1280e3, 1920e3,
	2560e3, 3840e3, 5120e3, 7680e3, 10240e3, 15360e3, 20480e3, 30720e3,
	40960e3, 61440e3, 81920e3, 122880e3, 163840e3, 245760e3, 327680e3, 491520e3,
}

// RNRTimer returns the nanoseconds of a 5-bit RNR NAK timer code.
func RNRTimer(code uint8) int64 { return rnrTimer[code&31] }

var credits = [31]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Credits returns the number of receive work requests that a credit code grants, or -1 for
// CreditsUnlimited.
func Credits(code uint8) int {
	if code&31 == CreditsUnlimited {
		return -1
	}
	return credits[code&31]
}

// CreditCode returns the largest credit code that grants at most n receive work requests. Codes 2b
// and 2b+1 grant 2^b and one and a half times that; codes 0 to 3 grant their own value.
func CreditCode(n int) uint8 {
	if n < 4 {
		return uint8(max(n, 0))
	}
	b := bits.Len(uint(n)) - 1
	return uint8(min(2*b+n>>(b-1)&1, CreditsUnlimited-1))
}
