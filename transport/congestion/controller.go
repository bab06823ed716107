package congestion

import "math"

// A Controller limits what one queue pair sends, by the algorithm of its NIC. What the NIC and the
// transport see of the network, they report to it.
type Controller interface {
	// Limited reports whether the queue pair may send only as Allowance says. Then what it sends is
	// counted by Sent.
	Limited() bool

	// Allowance returns how many bytes may be sent at now or, if that is 0, when the next may be
	// sent. An event may change that time.
	Allowance(now int64) (bytes int, next int64)

	// Sent counts bytes that left at now, with all their headers.
	Sent(now int64, bytes int)

	// Window returns how many packets of a path MTU may be unacknowledged, at least MinWindow. It
	// changes with Replied and Lost only.
	Window(mtu int) uint64

	// Rate returns the current rate in b/s.
	Rate(now int64) int64

	Notified(now int64)           // a CNP arrived
	Replied(now, roundTrip int64) // the reply to a request arrived, so many nanoseconds after it left
	Lost(now int64)               // a loss was found, or a timeout expired
}

// NewController returns that of a queue pair that has sent nothing, for an algorithm other than
// None; the rate of the port is in b/s. It keeps p, so that a change of a parameter takes effect.
func NewController(p *Params, line, now int64) Controller {
	if p.Algorithm == Swift {
		return newSwift(p, line)
	}
	return NewReactionPoint(p, line, now)
}

// unlimited is the window of an algorithm without one.
const unlimited = math.MaxUint64
