package wire

import "net/netip"

// A crossing is what the LoopbackLink of a slice has to exchange frames with the other slices of
// the NIC. Frames between two queue pairs of the NIC cross if different slices serve them. So do
// frames that the medium has given to another slice: the kernel steers a super-packet by its first
// packet, and a peer may put packets to several queue pairs in one.
type crossing struct {
	number   int
	slices   []*LoopbackLink
	arrivals *arrivals
	spare    copies
	unshared bool // the medium gives a multicast frame to one slice only
	readiness
}

// Slices makes links the slices of one NIC, each used by another engine. No link may be in use.
func Slices(links []*LoopbackLink) {
	for i, l := range links {
		_, xdp := l.inner.(*XDPLink)
		l.crossing = &crossing{number: i, slices: links, arrivals: &arrivals{inbox: inbox{limit: loopbackQueue}}, unshared: xdp}
	}
}

// sendToSelf sends frames to the NIC itself, and returns how many it took.
func (l *LoopbackLink) sendToSelf(batch []TxFrame) (n int) {
	if l.crossing == nil {
		return l.loopBack(batch)
	}
	for n < len(batch) {
		to := SliceOf(destQP(batch[n].Head[:]), len(l.slices))
		end := n + 1
		for end < len(batch) && SliceOf(destQP(batch[end].Head[:]), len(l.slices)) == to {
			end++
		}
		if to == l.number {
			n += l.loopBack(batch[n:end])
		} else {
			n += l.sendAcross(l.slices[to], batch[n:end])
		}
		if n < end {
			break
		}
	}
	return n
}

// sendAcross copies frames to another slice, and returns how many it took.
func (l *LoopbackLink) sendAcross(to *LoopbackLink, batch []TxFrame) (taken int) {
	for {
		rest := batch[taken:]
		n := 0
		for n < min(len(rest), to.arrivals.inbox.free()) && !tooLong(&rest[n], l.mtu) {
			rest[n].ID, rest[n].ICRC = l.nextID+uint16(n), 0
			l.spare.at(n).set(&rest[n], rest[n].Path.DstMAC)
			n++
		}
		put, wake, waits := to.arrivals.inbox.put(l.crossing, l.spare[:n], n < len(rest) && !tooLong(&rest[n], l.mtu))
		for i := range put {
			l.own.addTx(&rest[i])
		}
		l.nextID += uint16(put)
		taken += put
		if wake {
			to.ready()
		}
		for taken < len(batch) && tooLong(&batch[taken], l.mtu) {
			l.own.dropTx(&batch[taken], DropTooLong)
			taken++
		}
		if waits || taken == len(batch) {
			return taken
		}
	}
}

// joinedByOthers reports whether another slice has joined a group.
func (l *LoopbackLink) joinedByOthers(group netip.Addr) bool {
	for _, o := range l.slices {
		if o != l && o.groups[group] {
			return true
		}
	}
	return false
}

// copyToOthers loops a frame to a group back to the other slices that have joined it.
func (l *LoopbackLink) copyToOthers(f *TxFrame) {
	for _, to := range l.slices {
		if to == l || !to.groups[f.Path.Dst] {
			continue
		}
		l.spare.at(0).set(f, f.Path.DstMAC)
		l.pass(to)
	}
}

// passToMembers passes a received frame to the other slices that have joined its group.
func (l *LoopbackLink) passToMembers(f *RxFrame) {
	for _, to := range l.slices {
		if to != l && to.groups[f.Dst] {
			l.spare.at(0).setReceived(f)
			l.pass(to)
		}
	}
}

// pass puts the frame in the first spare buffer in the inbox of another slice, or drops it.
func (l *LoopbackLink) pass(to *LoopbackLink) {
	put, wake, _ := to.arrivals.inbox.put(l.crossing, l.spare[:1], false)
	if put == 0 {
		l.own.Drops[DropOverrun]++
	}
	if wake {
		to.ready()
	}
}

// receiveSteered receives frames from other slices and from the medium, and passes on those for
// queue pairs of other slices. It keeps multicast frames.
func (l *LoopbackLink) receiveSteered(now int64, batch []RxFrame) (int, error) {
	if n := l.arrivals.receive(batch); n > 0 {
		return n, nil
	}
	for range maxUndelivered {
		n, err := l.inner.Receive(now, batch)
		if n == 0 {
			return 0, err
		}
		kept := 0
		for i := range batch[:n] {
			f := &batch[i]
			to := SliceOf(destQP(f.Head), len(l.slices))
			if multicast := f.Dst.IsMulticast(); multicast || to == l.number {
				if multicast && l.unshared {
					l.passToMembers(f)
				}
				batch[kept], kept = *f, kept+1
				continue
			}
			l.spare.at(0).setReceived(f)
			l.pass(l.slices[to])
		}
		if kept > 0 || err != nil {
			return kept, err
		}
	}
	return 0, ErrUnread
}
