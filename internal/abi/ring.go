// Package abi defines the memory layout and the messages that the daemon and its clients share: the
// control socket's messages (messages.go, objects.go, operator.go, cm.go), the rings and doorbells
// (ring.go) and the rings' slots (slots.go). Everything is little-endian and of fixed size. The
// generator in gen writes the C header libverbs/core/softroce_abi.h from these files.
//
// Each struct is its own layout. Append and Decode convert between messages and bytes and accept
// any input. In returns a pointer to the struct in a slot, for writing, and Parse copies it out.
// What a value means is for the receiver to check. The daemon treats all memory that a client can
// write as hostile.
//
// A ring is a part of a chunk, a memfd that the daemon creates: a header, then slots. The
// producer's and the consumer's index are 32-bit counters that only grow (modulo 2^32), from a
// number that the daemon has stored in both. Slot i is at i modulo the number of slots, which is a
// power of two. The ring is full if producer - consumer equals that number.
//
// Both sides access the words of headers by atomic operations: a producer index is stored with
// release and loaded with acquire, and so is a consumer index. Where two words decide together,
// each side stores one and then loads the other, and at least one side sees what the other has
// stored:
//
//	client stores, then loads       daemon stores, then loads
//	DoorbellBits, DoorbellAsleep    DoorbellAsleep, DoorbellBits  work for an engine that falls asleep
//	RingProducer, RecvDoorbell      RecvDoorbell, RingProducer    receives of a QP that enters ERR
//	CQArmed, RingProducer           RingProducer, CQArmed         the event of a completion
//	RingConsumer, EventsWaiting     EventsWaiting, RingConsumer   room in the ring of async events
//
// Between the two there is a full fence. In Go the operations of sync/atomic are sequentially
// consistent: on arm64 a load (LDAR) does not overtake a store (STLR). In C a release and an
// acquire are not, so there the operations are sequentially consistent or a fence stands between
// them. The daemon stores no consumer index of this table: for its own a release is enough. A
// release is also enough for the producer index of a send queue: an atomic OR of DoorbellBits
// follows.
package abi

// Offsets in the header of every ring.
const (
	RingProducer = 0   // u32, written by the producer
	RingConsumer = 64  // u32, written by the consumer
	CQArmed      = 128 // u32, CQ rings: written by the client: CQArm…; the daemon resets it to 0 with each event
	CQEvents     = 192 // u32, CQ rings: written by the daemon: number of completion events
	RecvDoorbell = 128 // u32, receive rings: written by the daemon: not 0 if posting a receive must ring the doorbell
	RingSlots    = 256
)

// Values of CQArmed.
const (
	CQArmNone      = 0
	CQArmSolicited = 1
	CQArmNext      = 2
)

// Offsets in the doorbell page of a context. The client stores the producer index of a send queue,
// sets the queue's bit in DoorbellBits with an atomic OR, then (after a full fence) loads
// DoorbellAsleep; if that is not 0 it writes 1 to the context's doorbell eventfd. Bit n modulo 64
// of the 64-bit word at DoorbellBits + 8*(n/64) belongs to the QP with doorbell number n. After
// posting a receive and a fence, the client does the same if RecvDoorbell is not 0: the QP is in
// error, and the receive must be flushed.
//
// The words from DoorbellLent to DoorbellMove are hints, for when more threads run than there are
// processors. After each post of sends, the client stores the number of its processor plus 1, if it
// knows the number, in the lower half of DoorbellProcessor. The upper half counts the time that it
// has spent polling for completions that did not come. If DoorbellLent is not 0 after a post, the
// client yields the processor: an engine on the same one may have lent it to the client, for a
// reply to a message. Before it yields for lack of completions, the client clears DoorbellMove. If
// that was not 0 and the thread is on the processor of DoorbellEngine, it moves to that of
// DoorbellMove, if it may run there.
const (
	DoorbellAsleep    = 0  // u32, written by the daemon
	DoorbellAddresses = 4  // u32, written by the daemon: another value when the GID table has changed
	DoorbellLent      = 8  // u32, written by the daemon: not 0 if a post should yield the processor
	DoorbellProcessor = 12 // u32, written by the client: its processor, plus 1, and the time
	DoorbellEngine    = 16 // u32, written by the daemon: processor of the engine, plus 1, or 0
	DoorbellMove      = 20 // u32, written by both: processor to move to, plus 1
	DoorbellBits      = 64 // u64 words
	DoorbellSize      = 16384
	MaxDoorbells      = (DoorbellSize - DoorbellBits) * 8
)

// The halves of DoorbellProcessor.
const (
	ProcessorMask   = 0xffff
	ProcessorWaited = 0x10000 // one unit of time
	WaitedUnit      = 1024    // ns
)

// SendSlotSize returns the size of a send slot for that many SGEs or bytes of inline data,
// whichever needs more: a multiple of 64.
func SendSlotSize(sges, inline int) int {
	return (SendWQESize + max(sges*SGESize, inline) + 63) &^ 63
}

// RecvSlotSize returns the size of a receive slot: a power of two, at least 32.
func RecvSlotSize(sges int) int {
	n := 32
	for n < RecvWQESize+sges*SGESize {
		n *= 2
	}
	return n
}
