package congestion

// A RoundTrip estimates how long replies to one queue pair take, as RFC 6298 does. It times one
// request at a time. The zero value has no estimate.
type RoundTrip struct {
	mean      int64 // smoothed, in nanoseconds; 0: no reply was timed
	deviation int64 // of the replies from the mean
	least     int64

	psn   uint64 // of the request that is timed
	began int64  // when it was sent; 0: none is timed

	// Requests before this PSN were sent again although they, or the replies, may only be late. A
	// reply does not show to which transmission it is.
	ambiguous uint64
}

// Bounds of what counts as the round trip of an empty path, in nanoseconds. The replies of a
// process that waits for a processor take longer than the lower one now and then. The upper one
// exceeds the round trip of a data center: where no reply was faster, all came through a queue.
const (
	leastRoundTrip = 50e3
	mostRoundTrip  = 200e3
)

// Sent handles a request that the peer replies to as soon as it arrives. It reports whether the
// request is timed.
func (r *RoundTrip) Sent(psn uint64, now int64) bool {
	if r.began == 0 && psn >= r.ambiguous {
		r.psn, r.began = psn, now
		return true
	}
	return false
}

// Acknowledged handles a reply that acknowledges all requests before a PSN. It returns how long the
// reply to the request that is timed took, 0 if this is not it.
func (r *RoundTrip) Acknowledged(end uint64, now int64) int64 {
	if r.began == 0 || end <= r.psn {
		return 0
	}
	d := max(now-r.began, 1)
	r.began = 0
	r.measured(d)
	return d
}

func (r *RoundTrip) measured(d int64) {
	if r.mean == 0 {
		r.mean, r.deviation, r.least = d, d/2, d
		return
	}
	r.least = min(r.least, d)
	r.deviation += (max(d-r.mean, r.mean-d) - r.deviation) / 4
	r.mean += (d - r.mean) / 8
}

// WentBack handles that requests will be sent again, because one of them or a reply was lost.
func (r *RoundTrip) WentBack() { r.began = 0 }

// Repeated handles that the requests before a PSN will be sent again although nothing shows that
// one was lost.
func (r *RoundTrip) Repeated(end uint64) { r.began, r.ambiguous = 0, end }

// Limit returns the time after which a reply is probably lost, 0 if there is no estimate.
func (r *RoundTrip) Limit() int64 { return r.mean + 4*r.deviation }

// Queued reports whether replies take so long that packets wait in a queue on the path.
func (r *RoundTrip) Queued() bool {
	return r.mean > 2*min(max(r.least, leastRoundTrip), mostRoundTrip)
}
