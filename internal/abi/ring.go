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

// A send WQE: offsets in its slot. The SGEs (or the inline data) follow at SendSGEs.
const (
	SendWRID       = 0  // u64
	SendOpcode     = 8  // u32, ibv_wr_opcode
	SendFlags      = 12 // u32, ibv_send_flags
	SendImm        = 16 // u32, immediate (big-endian as the program gave it) or R_Key to invalidate
	SendNumSGE     = 20 // u32; bytes of inline data where SendFlags has SendInline
	SendRemoteAddr = 24 // u64
	SendRKey       = 32 // u32
	SendAH         = 36 // u32, handle of the address handle (UD)
	SendCompareAdd = 40 // u64
	SendSwap       = 48 // u64
	SendRemoteQPN  = 56 // u32
	SendRemoteQKey = 60 // u32
	SendSGEs       = 64

	SendRemoteSRQ = SendAH // u32, XRC: number of the shared receive queue

	// A bind: the new R_Key at SendRKey names the window by all but its low 8 bits.
	SendBindAddr   = SendRemoteAddr // u64, as the region has it
	SendBindLength = SendCompareAdd // u64
	SendBindLKey   = SendRemoteQPN  // u32, of the region
	SendBindAccess = SendRemoteQKey // u32, ibv_access_flags

	// A FLUSH, of the bytes at SendRemoteAddr.
	SendFlushLength      = SendCompareAdd // u32
	SendFlushPlacement   = SendRemoteQPN  // u8, ibv_placement_type
	SendFlushSelectivity = SendRemoteQKey // u8, ibv_selectivity_level

	SGEAddr   = 0
	SGELength = 8
	SGELKey   = 12
)

// A receive WQE: offsets in its slot.
const (
	RecvWRID   = 0 // u64
	RecvNumSGE = 8 // u32
	RecvSGEs   = 16
)

// A completion: offsets in its slot of CQESize bytes. Values are those of struct ibv_wc, and of the readers of
// struct ibv_cq_ex; there are no flow tags and no tag matching.
const (
	CQEWRID      = 0  // u64
	CQEStatus    = 8  // u32, ibv_wc_status
	CQEOpcode    = 12 // u32, ibv_wc_opcode
	CQEVendorErr = 16 // u32
	CQEByteLen   = 20 // u32
	CQEImm       = 24 // u32, immediate (big-endian as sent) or invalidated R_Key
	CQEQPNum     = 28 // u32
	CQESrcQP     = 32 // u32
	CQEFlags     = 36 // u32, ibv_wc_flags
	CQEPKeyIndex = 40 // u16
	CQESLID      = 42 // u16
	CQESL        = 44 // u8
	CQEPathBits  = 45 // u8
	CQEVLAN      = 46 // u16, receives: the VLAN tag with its priority (TCI), 0 for none
	CQETimestamp = 48 // u64, device clock: ns since the daemon's engine began
	CQEWallclock = 56 // u64, ns since 1970
)

// SendSlotSize returns the size of a send slot that holds so many SGEs or bytes of
// inline data, whichever needs more: a multiple of 64.
func SendSlotSize(sges, inline int) int {
	return (SendSGEs + max(sges*SGESize, inline) + 63) &^ 63
}

// RecvSlotSize returns the size of a receive slot: a power of two from 32.
func RecvSlotSize(sges int) int {
	n := 32
	for n < RecvSGEs+sges*SGESize {
		n *= 2
	}
	return n
}
