package congestion

// A NotificationPoint decides for one queue pair when a CNP is sent. The zero value is ready.
//
// A packet that is marked causes a CNP at once if none was sent for MinTimeBetweenCNPs. Otherwise
// it causes one at the end of that time, which the next packet finds: a sender that has stopped
// needs none.
type NotificationPoint struct {
	next    int64 // the earliest time of the next CNP
	pending bool  // a marked packet has arrived since the last one
}

// Pending reports whether Received must be called for packets without a mark, too.
func (n *NotificationPoint) Pending() bool { return n.pending }

// Received handles a packet that arrived at now, and reports whether a CNP is to be sent. It does
// so for each packet until Sent is called.
func (n *NotificationPoint) Received(p *Params, marked bool, now int64) bool {
	n.pending = (n.pending || marked) && p.Algorithm.UsesCNPs()
	return n.pending && now >= n.next
}

// Sent handles a CNP that is given to the link.
func (n *NotificationPoint) Sent(p *Params, now int64) {
	n.next, n.pending = now+microseconds(p.MinTimeBetweenCNPs), false
}

// Left says that the last CNP has left by now. If it may have been delayed by more than a fifth of
// the time until the next one, that time begins now.
func (n *NotificationPoint) Left(p *Params, now int64) {
	interval := microseconds(p.MinTimeBetweenCNPs)
	if next := now + interval; next-n.next > interval/5 {
		n.next = next
	}
}

func microseconds(n uint32) int64 { return int64(n) * 1000 }
