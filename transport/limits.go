package transport

// Limits of a queue pair, in packets unless stated otherwise.
const (
	// sendWindow is the most SEND and WRITE packets that may be unacknowledged; a timeout reduces
	// the window. At path MTU 4096 it is 2 MiB, more than a veth pair buffers between two engines.
	sendWindow = 512

	// readWindow is the most READ response packets that may be outstanding. A single READ may
	// exceed it.
	readWindow = 1024

	// ackInterval is the number of packets of a message after which the requester sets AckReq.
	ackInterval = 64

	// maxBackoff is how many times the local ACK timeout doubles while no response arrives. A slow
	// peer needs more time, not a retransmission of everything. IBTA 9.7.6.1.3 lets the requester
	// detect a timeout after up to four times its value.
	maxBackoff = 2

	// maxRead is how many contiguous bytes of a message are read from memory at once, provided they
	// can be sent in this step.
	maxRead = 64 << 10

	// atomicLen is the size of the operand of an atomic or an ATOMIC WRITE, in bytes.
	atomicLen = 8

	// maxOutstanding is half of the PSN space: beyond it, a new request looks like a duplicate.
	maxOutstanding = 1 << 23

	// queuedPerResource is how many responses may wait for transmission per responder resource:
	// that of the first request and one of a duplicate.
	queuedPerResource = 2
)
