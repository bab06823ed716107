package check

// Bounds on what is remembered of a capture, so that a hostile one does not take all memory.
const (
	maxHistory      = 4096    // requests of one stream, the newest; a NIC has fewer in flight
	maxRequests     = 1 << 19 // of all streams
	minHistory      = 32      // a stream's history once maxRequests are reached
	maxPartialReads = 8       // repeats of one READ from different places
	maxViolations   = 1000    // listed; all are counted
	maxNotes        = 1000    // listed
	maxListed       = 8       // packet numbers of one note
)

// Times in nanoseconds.
const (
	microsecond = 1000
	second      = 1e9

	// clockSlack is what a capture's microseconds can be off.
	clockSlack = 2 * microsecond

	// minTimeout is the shortest local ACK timeout: 4.096 us x 2^1 (IBTA 9.7.6.1.3).
	minTimeout = 8192

	// answerTime is longer than any timeout in use: code 20 is 4.3 s, and may be four
	// times that.
	maxTimeout = 20 * second

	// lateTime bounds how late a packet is where nothing else tells.
	maxLateness = 10e6

	// cnpInterval is the shortest time between two CNPs of one flow that a NIC is known
	// to be set to.
	cnpInterval = 2 * microsecond
)

// maxRetries is the greatest value of retry_cnt: a packet is sent once, and so often again.
const maxRetries = 7

// manyInFlight are more PSNs than a NIC has in flight when a capture begins.
const maxOutstanding = 1024

// manyDrains is how often everything that was sent has to be answered, until it is
// certain that it is everything.
const certainDrains = 16

// lateIDs is how far behind the newest Identification a late packet's may be.
const maxLateIDs = 1024
