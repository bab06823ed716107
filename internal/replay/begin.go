package replay

import "softroce/packet"

// A capture may begin in the middle of a connection, of a message, or of a recovery from loss. This file
// finds out where the judgement can begin: at which PSN, with which MSN and path MTU.

// findBase decides with which PSN the judgement begins: that of the first request, or of one sent
// before the first reply came, which may be lower; or what the first reply misses.
func (s *stream) findBase() {
	first := s.requests[0]
	s.base = first.psn
	until := int(^uint(0) >> 1)
	if len(s.answered) > 0 {
		r := s.answered[0]
		until = r.pos
		if r.info.Kind == packet.KindAck && !r.AETH.Syndrome.IsACK() && r.psn < s.base && r.psn > s.base-sequenceReach {
			s.base = r.psn
		}
	}
	for _, e := range s.requests {
		if e.at > until {
			break
		}
		if e.psn > first.psn-sequenceReach {
			s.base = min(s.base, e.psn)
		}
	}
}

// sequenceReach bounds, in PSNs, what may have been lost at once.
const sequenceReach = 1 << 12

// begin puts the messages from base on together, and infers the MSN before them.
func (s *stream) begin() {
	s.assemble()
	s.msn = s.startMSN()
}

// startMSN infers the MSN with which the stream begins: 0 for a young queue pair. Each reply
// to something new votes. A single one is not believed if the capture seems to have seen
// the queue pair's youth.
func (s *stream) startMSN() uint32 {
	votes := map[uint32]int{}
	newest := s.base - 1
	for _, r := range s.answered {
		if r.info.Headers&packet.HasAETH == 0 || r.psn < newest {
			continue
		}
		last := r.psn
		switch {
		case r.info.Kind == packet.KindAck && !r.AETH.Syndrome.IsACK():
			last--
		case r.info.Kind != packet.KindAck:
			if m := s.of(r.psn); m != nil {
				last = m.end() - 1
			}
		}
		newest = last
		votes[(r.AETH.MSN-s.counted(last))&packet.PSNMask]++
	}
	best := uint32(0)
	for msn, n := range votes {
		if n > votes[best] || n == votes[best] && best != 0 && msn < best {
			best = msn
		}
	}
	if votes[best] == 1 && s.young() {
		return 0
	}
	return best
}

// young reports whether the capture has something that came before the stream's first packet: the
// connection manager's packets, or frames of other protocols, by which programs connect.
func (s *stream) young() bool {
	first := s.requests[0]
	if first.No > first.at+1 {
		return true
	}
	for _, p := range s.packets[:first.at] {
		if p.Opcode.Service() == packet.UD {
			return true
		}
	}
	return false
}

// moveReach bounds the replies that are asked what was before the capture.
const moveReach = 1 << 8

// moveBase finds out whether requests from base on had been accepted before the capture began, which
// then has only repetitions of them. If so, base moves behind them, and it returns true.
func (s *stream) moveBase() bool {
	latest := map[int64]*event{}
	first := map[int64]*event{}
	req := s.requests
	for _, r := range s.answered[:min(len(s.answered), moveReach)] {
		for len(req) > 0 && req[0].at < r.pos {
			e := req[0]
			req = req[1:]
			latest[e.psn] = e
			if first[e.psn] == nil {
				first[e.psn] = e
			}
		}
		end, by := s.acceptedBy(r, latest[r.psn])
		if end <= s.base || end > s.base+sequenceReach {
			continue
		}
		last := end - 1
		if m := s.of(last); m != nil && answeredKind(m.kind) {
			last = m.first
		}
		if e := first[last]; e == nil && s.of(last) == nil || e != nil && e.at >= by {
			s.base = end
			return true
		}
	}
	return false
}

// acceptedBy tells what a reply says: everything before end had been accepted at a place. asked is the
// latest request with its PSN.
func (s *stream) acceptedBy(r, asked *event) (end int64, place int) {
	if r.info.Kind == packet.KindAck {
		return r.psn + int64(bit(r.AETH.Syndrome.IsACK())), r.pos
	}
	k := int((r.AETH.MSN - s.msn) & packet.PSNMask)
	if asked == nil || r.info.Headers&packet.HasAETH == 0 || k < 1 || k > len(s.messages) || s.messages[k-1].first <= asked.psn {
		return s.base, 0
	}
	return s.messages[k-1].end(), asked.at
}

// findMTU infers the path MTU: FIRST and MIDDLE packets have it, and the PSNs that a READ
// takes depend on it. Without the former it is at least what the largest packet carries.
func findMTU(requests, replies []*event) int {
	var votes [5]int // for 256 << i
	largest, whole := 0, false
	for _, es := range [][]*event{requests, replies} {
		for i, e := range es {
			largest = max(largest, len(e.Payload))
			if e.info.Payload && (e.info.Position == packet.First || e.info.Position == packet.Middle) {
				whole = true
				for k := range votes {
					votes[k] += 4 * bit(len(e.Payload) == 256<<k)
				}
			}
			if e.info.Kind == packet.KindRead && i+1 < len(es) {
				gap := packet.PSNDiff(es[i+1].BTH.PSN, e.BTH.PSN)
				for k := range votes {
					votes[k] += bit(e.RETH.Length > 0 && gap == packet.PSNCount(e.RETH.Length, 256<<k))
				}
			}
		}
	}
	best := -1
	for k := range votes {
		if (whole || 256<<k >= largest) && (best < 0 || votes[k] > votes[best]) {
			best = k
		}
	}
	if best < 0 {
		best = len(votes) - 1
	}
	return 256 << best
}
