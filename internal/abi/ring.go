// Package abi is the memory and message layout that softroce and its clients share.
// Everything is little-endian and of fixed size. The daemon creates all rings;
// it takes every word that a client can write for hostile.
//
// A ring is a memfd: one header page, then slots. The producer's and the consumer's
// index are 32-bit counters that only grow (modulo 2^32); slot i lies at i modulo the
// number of slots, which is a power of two. The ring is full when producer - consumer
// equals that number.
package abi

// Offsets in the header page of every ring.
const (
	RingProducer = 0   // u32, written by whoever produces
	RingConsumer = 64  // u32, written by whoever consumes
	CQArmed      = 128 // u32, CQ rings: written by the client: CQArm…; the daemon swaps in 0 when it fires
	CQEvents     = 192 // u32, CQ rings: written by the daemon: completion events given so far
	RecvDoorbell = 128 // u32, receive rings: written by the daemon: not 0 when posting a receive is to ring too
	RingSlots    = 4096
)

// Values of CQArmed.
const (
	CQArmNone      = 0
	CQArmSolicited = 1
	CQArmNext      = 2
)

// The doorbell page of a context: offsets. The client stores the producer index of a
// send queue, sets the queue's bit in DoorbellBits with an atomic OR, then (after a full
// fence) loads DoorbellAsleep; if that is not 0 it writes 1 to the context's
// doorbell eventfd. Bit n of the 64-bit word at DoorbellBits + 8*(n/64), n modulo 64, is
// the QP whose doorbell number is n. A poster of receives does the same where (after its
// fence) it finds RecvDoorbell not 0: the QP is in error and what is posted is to be flushed.
const (
	DoorbellAsleep = 0  // u32, written by the daemon
	DoorbellBits   = 64 // u64 words
	DoorbellSize   = 16384
	MaxDoorbells   = (DoorbellSize - DoorbellBits) * 8
)

// SendSlotSize returns the size of a send slot that holds so many SGEs or bytes of
// inline data, whichever needs more: a multiple of 64.
func SendSlotSize(sges, inline int) int {
	return (SendWQESize + max(sges*SGESize, inline) + 63) &^ 63
}

// RecvSlotSize returns the size of a receive slot: a power of two from 32.
func RecvSlotSize(sges int) int {
	n := 32
	for n < RecvWQESize+sges*SGESize {
		n *= 2
	}
	return n
}
