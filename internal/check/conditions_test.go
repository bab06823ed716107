package check

import (
	"slices"
	"strings"
	"time"

	"softroce/capture"
	"softroce/cm"
	"softroce/packet"
)

// What mutations apply to, and how they change it.

// Conditions on packets.

type condition = func(s *source, i int) bool

func all(cs ...condition) condition {
	return func(s *source, i int) bool {
		return !slices.ContainsFunc(cs, func(c condition) bool { return !c(s, i) })
	}
}

func anyPacket(*source, int) bool { return true }

func not(c condition) condition { return func(s *source, i int) bool { return !c(s, i) } }

// calm holds for connections without loss that the capture has both directions of.
func calm(s *source, i int) bool {
	f := s.flows[i]
	return s.calm && f != nil && f.Peer != nil
}

func calmUC(s *source, i int) bool {
	f := s.flows[i]
	return s.calm && f != nil && s.ps[i].Opcode.Service() == packet.UC
}

func service_(v packet.Service) condition {
	return func(s *source, i int) bool { return s.ps[i].Opcode.Service() == v }
}

func kind(ks ...packet.Kind) condition {
	return func(s *source, i int) bool { return slices.Contains(ks, s.ps[i].Opcode.Info().Kind) }
}

func position_(ps ...packet.Position) condition {
	return func(s *source, i int) bool { return slices.Contains(ps, s.ps[i].Opcode.Info().Position) }
}

func isRequest(s *source, i int) bool { return s.ps[i].Opcode.Info().Request }

func positive(s *source, i int) bool {
	p := s.ps[i]
	return p.Opcode.Info().Headers&packet.HasAETH != 0 && p.AETH.Syndrome.IsACK()
}

func syndrome(v packet.Syndrome) condition {
	return func(s *source, i int) bool {
		p := s.ps[i]
		return p.Opcode.Info().Kind == packet.KindAck && p.AETH.Syndrome == v
	}
}

func rnrNAK(s *source, i int) bool {
	p := s.ps[i]
	return p.Opcode.Info().Kind == packet.KindAck && p.AETH.Syndrome.IsRNR()
}

func hasPayload(s *source, i int) bool { return len(s.ps[i].Payload) > 0 }

// requestsBefore holds for packets that at least n requests of their stream precede, requestsAfter
// for those that at least n follow.
func requestsBefore(n int) condition {
	return func(s *source, i int) bool {
		t := s.stream(i)
		return t != nil && len(t.requests) > n && t.requests[n] <= i
	}
}

func requestsAfter(n int) condition {
	return func(s *source, i int) bool {
		t := s.stream(i)
		return t != nil && len(t.requests) >= n && (n == 0 || t.requests[len(t.requests)-n] > i)
	}
}

func repliesBefore(n int) condition {
	return func(s *source, i int) bool {
		t := s.stream(i)
		return t != nil && (n == 0 || len(t.replies) >= n && t.replies[n-1] < i)
	}
}

func repliesAfter(n int) condition {
	return func(s *source, i int) bool {
		t := s.stream(i)
		return t != nil && len(t.replies) >= n && (n == 0 || t.replies[len(t.replies)-n] > i)
	}
}

// sentAgain holds for requests that were sent before, unchanged.
func sentAgain(s *source, i int) bool {
	t := s.stream(i)
	if t == nil || !isRequest(s, i) {
		return false
	}
	for _, k := range t.requests {
		if k >= i {
			return false
		}
		if p, q := s.ps[k], s.ps[i]; p.PSN == q.PSN && p.Opcode == q.Opcode && len(p.Payload) == len(q.Payload) && p.RETH.VA == q.RETH.VA && p.ID != q.ID {
			return true
		}
	}
	return false
}

// nextOfFlow returns the index of the next packet of the same flow.
func (s *source) nextOfFlow(i int) int {
	for k := i + 1; k < len(s.ps); k++ {
		if s.flows[k] == s.flows[i] {
			return k
		}
	}
	return -1
}

// followedBy holds if the next packet of the flow meets a condition.
func followedBy(c condition) condition {
	return func(s *source, i int) bool {
		k := s.nextOfFlow(i)
		return k >= 0 && c(s, k)
	}
}

// Changes of packets.

func edit(f func(p *capture.Packet)) func(*recording, int) {
	return func(t *recording, i int) { t.edit(i, f) }
}

func rawByte(at int, f func(b byte) byte) func(*recording, int) {
	return func(t *recording, i int) { t.raw(i, func(b []byte) { b[at] = f(b[at]) }) }
}

// numbered sets Identifications that show the order of the changed capture.
func numbered(f func(*recording, int)) func(*recording, int) {
	return func(t *recording, i int) {
		f(t, i)
		t.number()
	}
}

// again inserts a changed copy of the i-th packet after it.
func again(after time.Duration, f func(p *capture.Packet)) func(*recording, int) {
	return func(t *recording, i int) {
		t.insert(i+1, t.rs[i])
		if f != nil {
			t.edit(i+1, f)
		}
		if after > 0 {
			t.shift(i+1, after)
		}
		t.number()
	}
}

func psn(n int) func(*recording, int) {
	return edit(func(p *capture.Packet) { p.PSN = packet.PSNAdd(p.PSN, n) })
}

func opcode(change func(o packet.Opcode) packet.Opcode) func(*recording, int) {
	return edit(func(p *capture.Packet) { p.Opcode = change(p.Opcode) })
}

// operation changes the operation of an opcode, not its service.
func operation(op packet.Opcode) func(*recording, int) {
	return edit(func(p *capture.Packet) {
		p.Opcode = packet.Opcode(p.Opcode.Service()) | op
		if p.Opcode.Info().Headers&packet.HasAETH != 0 {
			p.AETH.Syndrome = packet.CreditsUnlimited
		}
		if !p.Opcode.Info().Payload {
			p.Payload = nil
		}
	})
}

func msn(n int) func(*recording, int) {
	return edit(func(p *capture.Packet) { p.AETH.MSN = packet.PSNAdd(p.AETH.MSN, n) })
}

// swapNext exchanges the i-th packet and the next one of its flow.
func swapNext(t *recording, i int) {
	p := t.parse(i)
	for k := i + 1; k < len(t.rs); k++ {
		if q := t.parse(k); q.Src == p.Src && q.Dst == p.Dst && q.DestQP == p.DestQP {
			t.swap(i, k)
			return
		}
	}
}

func short(n int) func(*recording, int) {
	return edit(func(p *capture.Packet) { p.Payload = p.Payload[:len(p.Payload)-n] })
}

// removeResponse removes the whole response to the request at i.
func removeResponse(t *recording, i int) {
	p := t.parse(i)
	n := 1
	if p.Opcode.Info().Kind == packet.KindRead {
		n = 1 << 16
	}
	begun := false
	for k := i + 1; k < len(t.rs) && n > 0; k++ {
		q := t.parse(k)
		if q.Src != p.Dst || q.Opcode.Info().Request || q.Opcode.Info().Kind == packet.KindAck {
			continue
		}
		if !begun && q.PSN != p.PSN {
			continue
		}
		begun = true
		ends := q.Opcode.Info().Position.EndsMessage()
		t.drop(k)
		k--
		n--
		if ends {
			return
		}
	}
}

var (
	sendOrWrite = kind(packet.KindSend, packet.KindWrite)
	isRead      = kind(packet.KindRead)
	isAtomic    = kind(packet.KindCompareSwap, packet.KindFetchAdd)
	isResponse  = kind(packet.KindReadResponse)
	isAck       = all(kind(packet.KindAck), positive)
	toGSI       = func(s *source, i int) bool {
		return s.ps[i].DestQP == cm.GSIQPN && s.ps[i].Opcode.Service() == packet.UD
	}
	midStream = all(calm, isRequest, requestsBefore(2), requestsAfter(2))
)

// grantsReads holds for the first REP before a connection whose READs use all that it grants.
func grantsReads(s *source, i int) bool {
	rep := s.rep(i)
	if rep == nil {
		return false
	}
	for k := range i {
		if before := s.rep(k); before != nil && before.LocalID == rep.LocalID {
			return false
		}
	}
	for f := range s.streams {
		granted := rep.ResponderResources
		if f.Src == s.ps[i].Src {
			granted = rep.InitiatorDepth
		}
		if granted > 0 && s.outstanding(f) == int(granted) {
			return true
		}
	}
	return false
}

// rep returns the REP in the i-th packet, nil if there is none.
func (s *source) rep(i int) *cm.REP {
	if !toGSI(s, i) {
		return nil
	}
	_, m, _ := cm.Parse(s.ps[i].Payload)
	rep, _ := m.(*cm.REP)
	return rep
}

// regrant changes the numbers of READs and atomics that a REP grants.
func regrant(by int) func(*recording, int) {
	return edit(func(p *capture.Packet) {
		h, m, _ := cm.Parse(p.Payload)
		rep := m.(*cm.REP)
		for _, n := range []*uint8{&rep.ResponderResources, &rep.InitiatorDepth} {
			*n = uint8(max(0, int(*n)+by))
		}
		var b [cm.MADSize]byte
		cm.Put(&b, h.TID, h.Modifier, rep)
		p.Payload = b[:]
	})
}

// onlySends holds in captures whose connections only SEND.
func onlySends(s *source, _ int) bool {
	for _, p := range s.ps {
		switch k := p.Opcode.Info().Kind; k {
		case packet.KindSend, packet.KindAck:
		default:
			return false
		}
	}
	return true
}

// mtu700 makes 700 the path MTU of the i-th packet's direction.
func mtu700(t *recording, i int) {
	p := t.parse(i)
	for k := range t.rs {
		q := t.parse(k)
		if in := q.Opcode.Info(); q.Src == p.Src && q.DestQP == p.DestQP && (in.Position == packet.First || in.Position == packet.Middle) {
			t.edit(k, func(p *capture.Packet) { p.Payload = make([]byte, 700) })
		} else if q.Src == p.Src && q.DestQP == p.DestQP && len(q.Payload) > 700 {
			t.edit(k, func(p *capture.Packet) { p.Payload = make([]byte, 700) })
		}
	}
}

// goesOn holds if n pairs of a reply and a new request follow the response to the request at i.
func goesOn(n int) condition {
	return func(s *source, i int) bool {
		t := s.stream(i)
		mtu, _ := s.flows[i].PathMTU().Value()
		exchanges, replied, end := 0, false, packet.PSNAdd(s.ps[i].PSN, packet.PSNCount(s.ps[i].RETH.Length, mtu))
		for k := i + 1; k < len(s.ps); k++ {
			if s.stream(k) != t {
				continue
			}
			if !isRequest(s, k) {
				replied = replied || packet.PSNDiff(s.ps[k].PSN, end) >= 0 && positive(s, k)
				continue
			}
			if replied {
				exchanges, replied = exchanges+1, false
			}
		}
		return exchanges >= n
	}
}

// isFixture holds for captures whose name begins with a prefix.
func isFixture(prefix string) condition {
	return func(s *source, _ int) bool { return strings.HasPrefix(s.name, prefix) }
}

// packetOf holds for one packet of a source.
func packetOf(name string, no int) condition {
	return func(s *source, i int) bool { return s.name == name && i+1 == no }
}

func lastTransmission(s *source, i int) bool {
	return !slices.ContainsFunc(s.stream(i).requests, func(k int) bool { return k > i && s.ps[k].PSN == s.ps[i].PSN })
}

// wholeUntilResend holds for a NAK if the Identifications show that the capture has all packets of
// the requester from before the NAK until it went back.
func wholeUntilResend(s *source, i int) bool {
	before := -1
	for k := range s.ps {
		if s.ps[k].Src != s.ps[i].Dst || s.ps[k].Dst != s.ps[i].Src {
			continue
		}
		if k > i && s.ps[k].ID != s.ps[before].ID+1 {
			return false
		}
		if k > i && isRequest(s, k) && s.stream(k) == s.stream(i) && s.ps[k].PSN == s.ps[i].PSN {
			return true
		}
		if before = k; k > i && isRequest(s, k) && s.stream(k) == s.stream(i) && packet.PSNDiff(s.ps[k].PSN, s.ps[i].PSN) < 0 {
			return false
		}
	}
	return false
}

// answersNAK holds for the retransmission that begins at the PSN of the NAK before it.
func answersNAK(s *source, i int) bool {
	for _, k := range slices.Backward(s.stream(i).replies) {
		if k < i {
			return syndrome(packet.NAKSequence)(s, k) && s.ps[k].PSN == s.ps[i].PSN
		}
	}
	return false
}

// exactMSN holds for replies whose MSN can only have one value: no later request is outstanding
// that it might count too.
func exactMSN(s *source, i int) bool {
	return s.ps[i].Opcode.Info().Kind == packet.KindAck || s.ps[i].Opcode.Info().Position != packet.First && !slices.ContainsFunc(s.stream(i).requests, func(k int) bool {
		return k < i && packet.PSNDiff(s.ps[k].PSN, s.ps[i].PSN) > 0
	})
}

// nothingElseToAck holds for a response if all requests before have a reply, or if new requests
// follow.
func nothingElseToAck(s *source, i int) bool {
	return goesOn(3)(s, i) || slices.ContainsFunc(s.stream(i).replies, func(k int) bool {
		return k < i && isAck(s, k) && packet.PSNDiff(s.ps[k].PSN, s.ps[i].PSN) == -1
	})
}

// noACKOfIt holds for a READ or atomic whose last PSN no ACK has.
func noACKOfIt(s *source, i int) bool {
	mtu, _ := s.flows[i].PathMTU().Value()
	last := packet.PSNAdd(s.ps[i].PSN, packet.PSNCount(s.ps[i].RETH.Length, mtu)-1)
	return !slices.ContainsFunc(s.stream(i).replies, func(k int) bool { return isAck(s, k) && s.ps[k].PSN == last })
}

func onlyACKs(s *source, i int) bool {
	return !slices.ContainsFunc(s.stream(i).replies, func(k int) bool { return s.ps[k].Opcode.Info().Kind != packet.KindAck })
}

func noRNR(s *source, i int) bool {
	return !slices.ContainsFunc(s.stream(i).replies, func(k int) bool { return rnrNAK(s, k) })
}

// previousWithin holds if the reply before has a PSN less than n below.
func previousWithin(n int) condition {
	return func(s *source, i int) bool {
		for _, k := range slices.Backward(s.stream(i).replies) {
			if k < i {
				d := packet.PSNDiff(s.ps[i].PSN, s.ps[k].PSN)
				return isAck(s, k) && d > 0 && d < n
			}
		}
		return false
	}
}

// answered holds if a later reply acknowledges the request.
func answered(s *source, i int) bool {
	t := s.stream(i)
	return slices.ContainsFunc(t.replies, func(k int) bool { return k > i && positive(s, k) && packet.PSNDiff(s.ps[k].PSN, s.ps[i].PSN) >= 0 })
}

// answersWrite holds if a reply acknowledges a WRITE without immediate of one packet.
func answersWrite(s *source, i int) bool {
	return slices.ContainsFunc(s.stream(i).requests, func(k int) bool {
		in := s.ps[k].Opcode.Info()
		return k < i && s.ps[k].PSN == s.ps[i].PSN && in.Kind == packet.KindWrite && !in.ConsumesRecv && in.Position == packet.Only
	})
}

// previousAck holds if the ACK before has another PSN.
func previousAck(s *source, i int) bool {
	for _, k := range slices.Backward(s.stream(i).replies) {
		if k < i && s.ps[k].Opcode == s.ps[i].Opcode {
			return s.ps[k].PSN != s.ps[i].PSN
		}
	}
	return false
}

func manyReplies(n int) condition {
	return func(s *source, i int) bool { return len(s.stream(i).replies) >= n }
}

// resultAgain holds for a repeated response to an atomic.
func resultAgain(s *source, i int) bool {
	p, t := s.ps[i], s.stream(i)
	return p.Opcode.Info().Kind == packet.KindAtomicAck && t != nil && slices.ContainsFunc(t.replies, func(k int) bool {
		return k < i && s.ps[k].PSN == p.PSN && s.ps[k].Opcode == p.Opcode && s.ps[k].ID != p.ID
	})
}
