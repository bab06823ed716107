package replay

import (
	"encoding/binary"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// An outcome is what happened to a captured request.
type outcome uint8

const (
	lost       outcome = iota // after the point of capture
	ignored                   // it may have arrived; nothing shows it or depends on it
	unanswered                // the capture ends before a reply
	arrived
	notReady // it arrived and found no receive posted
	refused  // it arrived and was refused with a NAK that ends the connection
)

// consider decides the outcome of a request and, if it arrived, feeds it to softroce's responder.
func (r *responderModel) consider(e *conversation.Transmission) {
	r.advance(e.Index)
	r.feedCopies(e.Index)
	f := r.outcomeOf(e)
	if f == unanswered && r.assumesArrival() {
		f = arrived // the live responder shows it
	}
	switch f {
	case lost:
		switch {
		case e.Next != nil:
			r.lost(e, "%v PSN %d was retransmitted in packet %d", e.Opcode, e.BTH.PSN, e.Next.No)
		default:
			r.lost(e, "%v PSN %d has no answer", e.Opcode, e.BTH.PSN)
		}
	case ignored:
	case unanswered:
		if e.AckReq {
			r.note(e, "%v PSN %d has no answer when the capture ends", e.Opcode, e.BTH.PSN)
		}
	case arrived, refused:
		if r.late(e) {
			return
		}
		r.feedOvertaking(e, r.inferred.answered(e.Seq))
		r.feed(e)
		r.feedOvertaken(e)
		r.expectCopies(e)
	case notReady:
		if rnr := r.inferred.refusal(e.Seq, e.Index, never, isRNR); rnr != nil {
			r.feedOvertaking(e, rnr.SentBefore)
		}
		r.receives.empty = !r.known()
		r.feed(e)
		r.receives.empty = false
	}
}

func (r *responderModel) outcomeOf(e *conversation.Transmission) outcome {
	switch {
	case r.overtook[e]:
		return ignored // it arrived ahead of another one, and was fed
	case e.Seq > r.epsn && r.inferred.overtaken[e]:
		r.delayed[e.Seq] = e
		return ignored // until it arrives
	case e.Seq > r.epsn:
		return r.outcomeAhead(e)
	case e.Seq < r.epsn:
		return r.outcomeDuplicate(e)
	}
	return r.outcomeExpected(e)
}

// outcomeAhead decides the outcome of a request beyond the expected PSN, which only causes a NAK.
func (r *responderModel) outcomeAhead(e *conversation.Transmission) outcome {
	nak := r.inferred.refusal(r.epsn, e.Index, never, isSequence)
	if nak == nil {
		return ignored
	}
	if by := r.inferred.answered(r.epsn); by < nak.SentBefore && (r.s.Ordered || nak.SentBefore-by > reorderedReplies) {
		return ignored
	}
	return arrived
}

// reorderedReplies bounds by how many packets a reply may be late where the order of replies is not
// certain.
const reorderedReplies = 64

func isSequence(s packet.Syndrome) bool { return s == packet.NAKSequence }
func isRNR(s packet.Syndrome) bool      { return s.IsRNR() }

// outcomeDuplicate decides the outcome of a duplicate. A READ or atomic arrived if it has a
// response. Others are acknowledged any number of times, and nothing depends on it.
func (r *responderModel) outcomeDuplicate(e *conversation.Transmission) outcome {
	if e.Info.Kind.HasOwnResponse() && r.inferred.responseTo[e] == nil {
		return lost
	}
	return arrived
}

// outcomeExpected decides the outcome of a request with the expected PSN. It was accepted before
// the first reply that shows it; of several transmissions, the last one before that reply arrived,
// unless something shows otherwise.
func (r *responderModel) outcomeExpected(e *conversation.Transmission) outcome {
	by := r.inferred.accepted(e.Seq)
	next := never
	if e.Next != nil {
		next = e.Next.Index
	}
	at, known := r.inferred.arrivals[e.Seq]
	answered := r.inferred.answered(e.Seq)
	rnr := r.inferred.refusal(e.Seq, e.Index, min(next, answered), isRNR)
	if rnr == nil && known && at == next {
		rnr = r.inferred.refusal(e.Seq, next, answered, isRNR) // the next one was accepted
	}
	if rnr != nil && e.Info.ConsumesRecv && !(known && at == e.Index && r.refusedBy[rnr]) {
		r.refusedBy[rnr] = true
		return notReady
	}
	if nak := r.inferred.refusal(e.Seq, e.Index, next, conversation.IsFatal); nak != nil && nak.SentBefore < answered {
		return refused
	}
	switch {
	case by == never && e.Next == nil:
		return unanswered
	case by == never || known && e.Index < at:
		return lost
	}
	return arrived
}

// feed feeds a request to softroce's responder, and collects its replies.
func (r *responderModel) feed(e *conversation.Transmission) {
	r.feedAt(e, r.inferred.responseTo[e], e.Index)
}

// feedAt is feed with the response that shows the content of memory, and the index after which the
// request arrives.
func (r *responderModel) feedAt(e *conversation.Transmission, answers *response, at int) {
	h := r.prepare(e, answers)
	expected := e.Seq == r.epsn
	r.feeding(e, h)
	r.receives.size = transport.MaxMessage
	if n, ok := r.shortReceives[e.Seq]; ok {
		r.receives.size = n
	}
	r.receive(h, e.WholePayload())
	r.views.writeBack()
	if r.qp.State() == ib.QPSErr {
		r.fed(e, false)
		r.collect(e, at, !expected)
		r.failed(e)
		return
	}
	psn, msn := r.qp.Expected()
	before := r.epsn
	r.epsn += int64((psn - uint32(r.epsn)) & packet.PSNMask)
	if r.epsn != before {
		r.states[r.epsn-1] = state{(msn + r.s.FirstMSN) & packet.PSNMask, at}
		r.steps = append(r.steps, acceptance{r.epsn - 1, at})
	}
	r.fed(e, r.epsn != before)
	r.collect(e, at, !expected)
	if expected && r.epsn != before {
		r.accepted(e)
	}
}

// withoutInvalidate maps the opcodes with invalidate to those without: the capture does not show
// which memory the key belongs to.
var withoutInvalidate = map[packet.Opcode]packet.Opcode{
	packet.SendLastInv: packet.SendLast,
	packet.SendOnlyInv: packet.SendOnly,
}

// prepare returns the headers of a request with the keys of softroce's memory, and fills that
// memory with what the response shows.
func (r *responderModel) prepare(e *conversation.Transmission, answers *response) packet.Header {
	h := e.Header
	if key, ok := r.invalidated[h.Invalidate]; ok && e.Info.Headers&packet.HasIETH != 0 {
		h.Invalidate = key
	} else if plain, ok := withoutInvalidate[h.Opcode]; ok {
		h.Opcode = plain
		r.note(e, "the key that it invalidates is not rebuilt: replayed as a SEND without invalidate")
	}
	if e.Info.Kind == packet.KindFlush && h.FETH.Placement&uint8(ib.FlushPersistent) != 0 {
		h.FETH.Placement = uint8(ib.FlushGlobal)
		r.note(e, "softroce has no persistent memory: replayed as a FLUSH to global visibility")
	}
	_, _, key, ok := target(e)
	if !ok {
		return h
	}
	nak := r.inferred.refusal(e.Seq, e.Index, never, func(s packet.Syndrome) bool { return s == packet.NAKRemoteAccess })
	if region := r.regions[key]; region != nil && (r.known() || nak == nil || !r.mayRefuse(key, nak)) {
		h.RETH.RKey, h.Atomic.RKey = region.RKey(), region.RKey()
		r.fill(e, answers, r.shadows[key])
	} else {
		h.RETH.RKey, h.Atomic.RKey = 0, 0 // 0 is not a valid key
	}
	return h
}

// fill sets memory to what the response to a READ or atomic shows.
func (r *responderModel) fill(e *conversation.Transmission, answers *response, m *sparseMemory) {
	if m.fixed {
		return
	}
	if answers == nil && e.Info.Kind.IsAtomic() {
		if answers = r.inferred.later(r.s, e); answers == nil {
			m.markUnknown(e.Atomic.VA, 8)
		}
	}
	if answers == nil {
		return
	}
	changed := 0
	for _, a := range answers.packets {
		free := func(since int) bool { return r.s.MayHaveChanged(since, a) }
		switch {
		case e.Info.Kind == packet.KindRead && a.Info.Kind == packet.KindReadResponse && a.Seq >= e.Seq && a.Seq < e.End():
			off := uint64(a.Seq-e.Seq) * uint64(r.s.PathMTU)
			captured := a.CapturedPayload()
			n := min(uint64(len(captured)), uint64(e.RETH.Length)-min(off, uint64(e.RETH.Length)))
			changed += m.learn(e.RETH.VA+off, captured[:n], a.Index, free)
		case e.Info.Kind.IsAtomic() && a.Info.Kind == packet.KindAtomicAck && e.Seq == r.epsn && e.Atomic.VA%8 == 0:
			changed += m.learn(e.Atomic.VA, native(a.OrigData), a.Index, free)
		}
	}
	if changed > 0 {
		r.note(e, "%s of the memory that it reads changed since the capture last showed them; something else wrote to it", Count(changed, "byte"))
	}
}

// accepted records the effect of an accepted request on memory.
func (r *responderModel) accepted(e *conversation.Transmission) {
	va, n, key, ok := target(e)
	if ok {
		r.lastAccepted[key] = e.Index
	}
	switch e.Info.Kind {
	case packet.KindWrite:
		if ok {
			r.writeVA, r.writeKey = va, key
		}
		if m := r.shadows[r.writeKey]; m != nil {
			m.markWritten(r.writeVA, e)
		}
		r.writeVA += uint64(len(e.Payload))
	case packet.KindAtomicWrite:
		if m := r.shadows[key]; m != nil {
			m.markWritten(va, e)
		}
	case packet.KindCompareSwap, packet.KindFetchAdd:
		if m := r.shadows[key]; m != nil && (r.inferred.responseTo[e] != nil || r.inferred.later(r.s, e) != nil) {
			m.markKnown(va, int(n), e.Index)
		}
	}
}

// collect records the packets that the responder sends after an index.
func (r *responderModel) collect(e *conversation.Transmission, at int, again bool) {
	more := r.qp.Transmit(&r.env)
	for _, m := range r.take() {
		m.AETH.MSN = (m.AETH.MSN + r.s.FirstMSN) & packet.PSNMask
		psn := r.epsn + int64(packet.PSNDiff(m.BTH.PSN, uint32(r.epsn)&packet.PSNMask))
		r.outputs = append(r.outputs, &output{sentPacket: m, psn: psn, at: at, cause: e, copied: r.copying, duplicate: again})
		if m.Opcode.Info().Kind == packet.KindAck && isSequence(m.AETH.Syndrome) {
			r.lastSequenceNAK = psn
		}
	}
	r.views.release()
	if more {
		r.ended = true
		r.tooLong(e)
		r.note(e, "its response is far longer than the capture; later packets are not judged")
	}
}

// failed ends the replay after softroce's responder refused a request. If the captured one did not,
// that is a difference, and later packets cannot be compared.
func (r *responderModel) failed(e *conversation.Transmission) {
	r.ended = true
	if r.inferred.refusal(e.Seq, e.Index, never, conversation.IsFatal) != nil {
		return
	}
	r.cutoff = e.Index
	if len(r.outputs) == 0 {
		return
	}
	nak := r.outputs[len(r.outputs)-1]
	nak.used = true
	if r.malformed(e) {
		r.v.deviate(deviationLength, e)
		r.note(e, "softroce refuses it; later packets are not judged")
		return
	}
	r.v.differ(e, "reply", "accepted", nak.AETH.Syndrome.String())
}

// malformed reports whether the payload length does not fit the packet's position in its message.
func (r *responderModel) malformed(e *conversation.Transmission) bool {
	n := len(e.Payload)
	switch e.Info.Position {
	case packet.First, packet.Middle:
		return n != r.s.PathMTU
	case packet.Last:
		return n == 0 || n > r.s.PathMTU
	}
	return n > r.s.PathMTU
}

// native returns the bytes of a number in memory, in host byte order.
func native(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
