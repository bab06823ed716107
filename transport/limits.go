package transport

// migrated is MigReq of every packet. Paths do not migrate: the path migration state of each queue
// pair is "migrated", in which IBTA 17.2.8 sets the bit. What a peer sends changes nothing then: 1
// is its own state, 0 requests nothing.
const migrated = true

// Limits of a queue pair, in packets unless stated otherwise.
const (
	// sendWindow is the most SEND and WRITE packets that may be unacknowledged; losses and timeouts
	// reduce the window. At path MTU 4096 it is 2 MiB, more than a veth pair buffers between two
	// engines.
	sendWindow = 512

	// acksPerWindow is how many ACKs a full window requests at least.
	acksPerWindow = 4

	// readWindow is the most READ response packets that may be outstanding. A single READ may
	// exceed it.
	readWindow = 1024

	// ackInterval is the number of packets of a message after which the requester sets AckReq.
	ackInterval = 64

	// minRecovery is the earliest that a retransmission after a NAK is repeated, in nanoseconds. It
	// is more than a busy machine usually keeps an engine waiting.
	minRecovery = 1e6

	// maxBackoff is how many times the local ACK timeout doubles while no response arrives, from a
	// peer that has replied since the work request was posted. A slow peer needs more time, not a
	// retransmission of everything. IBTA 9.7.6.1.3 lets the requester detect a timeout after up to
	// four times its value.
	maxBackoff = 2

	// minTimeout is the least local ACK timeout code that is used, 1.05 ms. With a shorter one, a
	// reply that only waits for a processor would count as lost. Adapters have such a limit too,
	// ConnectX-2 of half a second; programs use values from 1 ms.
	minTimeout = 8

	// maxRead is how many contiguous bytes of a message are read from memory at once, provided they
	// can be sent in this step.
	maxRead = 64 << 10

	// atomicLen is the size of the operand of an atomic or an ATOMIC WRITE, in bytes.
	atomicLen = 8

	// maxOutstanding is half of the PSN space: beyond it, a new request looks like a duplicate.
	maxOutstanding = 1 << 23
)
