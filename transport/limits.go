package transport

// What a queue pair allows itself. Values are packets unless said otherwise.
const (
	// sendWindow bounds SEND and WRITE packets sent and not acknowledged, unless a timeout has made it less. At path MTU
	// 4096 it is 2 MiB: more than a veth pair holds between two engines.
	sendWindow = 512

	// readWindow bounds READ responses asked for and not received; one READ
	// may always be outstanding, whatever its length.
	readWindow = 1024

	// ackInterval is how many packets go without AckReq inside a message.
	ackInterval = 64

	// maxBackoff is how often the local ACK timeout doubles while no answer comes. A peer that is slow, rather than
	// gone, needs time more than it needs everything again. Up to four times the timeout is
	// what the requester may take to notice it (IBTA 9.7.6.1.3).
	maxBackoff = 2

	// readAhead is how many bytes of a message are fetched from memory at once, if so many can be
	// sent. It matters where memory belongs to another process: one system call each.
	readAhead = 64 << 10

	// atomicLen is what an atomic or an ATOMIC WRITE changes, in bytes.
	atomicLen = 8

	// maxOutstanding keeps every PSN in flight distinguishable from a duplicate (2^23).
	maxOutstanding = 1 << 23

	// answersPerResource is how many answers may wait to be emitted for each READ or atomic
	// that may be outstanding: new ones and repeated ones.
	queuedPerResource = 2
)
