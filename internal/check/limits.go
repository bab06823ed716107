package check

// Bounds on what is kept of a capture, so that a malicious one does not exhaust memory.
const (
	maxHistory      = 4096    // newest requests of one stream; a NIC has fewer outstanding
	maxRequests     = 1 << 19 // requests of all streams
	minHistory      = 32      // requests of one stream once maxRequests is reached
	maxPartialReads = 8       // different partial retransmissions of one READ
	maxViolations   = 1000    // listed; all are counted
	maxNotes        = 1000    // listed
	maxListed       = 8       // packet numbers of one note; flows in one line
	maxUnpaired     = 1000    // listed; all are counted
	maxRecoveries   = 1000    // listed; all are counted
)

// Times in nanoseconds.
const (
	microsecond = 1000
	second      = 1e9

	// clockSlack is the error of a capture with timestamps in microseconds.
	clockSlack = 2 * microsecond

	// maxTimeout exceeds every local ACK timeout in use: code 20 is 4.3 s, and a timer may take
	// four times as long (IBTA 9.7.6.1.3).
	maxTimeout = 20 * second

	// maxLateness bounds the delay of a reordered packet where the Identification does not show it:
	// 10 ms, far above the queueing delay of a data center network.
	maxLateness = 10e6

	// cnpInterval is the shortest interval between CNPs of one flow that a NIC is known to be
	// configured with.
	cnpInterval = 2 * microsecond
)

// maxRetries is the largest retry_cnt: a packet is transmitted once and retried as often.
const maxRetries = 7

// maxOutstanding exceeds the PSNs that a NIC has outstanding when a capture begins.
const maxOutstanding = 1024

// certainDrains is how many times all outstanding requests have to be acknowledged before it is
// certain that none from before the capture is left.
const certainDrains = 16

// minExchanges is how many new requests have to follow replies that pass over a READ or atomic
// without response until the capture ends.
const minExchanges = 2
