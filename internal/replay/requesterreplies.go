package replay

import (
	"fmt"
	"slices"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// deliver gives softroce's requester the oldest captured reply that the captured requester may have
// had before it sent c, the i-th request, if wanted accepts its effect. It returns false if there
// is none. A reply that acknowledges what is retransmitted later was lost after the point of
// capture, or late; deliver skips it.
func (r *requesterModel) deliver(i int, c *conversation.Transmission, wanted func(una int64, back bool) bool) bool {
	for k := 0; k < len(r.pending) && r.pending[k].Index < c.SentBefore; {
		e := r.pending[k]
		una, back := r.effect(e)
		if una > r.floor[i] {
			if r.mode.mayCross(e) {
				k++
				continue
			}
			r.skipReply(k)
			if !r.mode.ignoresNAK(e, c) {
				r.v.Lost = append(r.v.Lost, Note{e.No, fmt.Sprintf("the requester had not received it when it sent packet %d", c.No)})
			}
			continue
		}
		if e.IsFatal() {
			r.skipReply(k)
			r.v.Lost = append(r.v.Lost, Note{e.No, fmt.Sprintf("the requester continues with packet %d", c.No)})
			continue
		}
		if !wanted(una, back) {
			return false
		}
		r.drop(k)
		r.deliverReply(e)
		return true
	}
	return false
}

// skipReply removes a captured reply that the captured requester did not receive.
func (r *requesterModel) skipReply(k int) {
	r.mode.skipped(r.pending[k])
	r.drop(k)
}

// drop removes a reply, usually the first, from those to deliver.
func (r *requesterModel) drop(k int) {
	if k == 0 {
		r.pending = r.pending[1:]
	} else {
		r.pending = slices.Delete(slices.Clone(r.pending), k, k+1)
	}
}

// effect predicts what a reply does: the oldest unacknowledged PSN after it, and whether the
// requester goes back there.
func (r *requesterModel) effect(e *conversation.Transmission) (after int64, back bool) {
	una, _ := r.progress()
	if e.Seq < una {
		return una, false
	}
	defer func() { back = back && !(r.mode.hasGoneBack() && after == una && !isRNR(e.AETH.Syndrome)) }()
	missing := r.firstMissing(una)
	after = e.Seq + 1
	switch {
	case e.Info.Kind != packet.KindAck:
		if e.Seq > missing {
			return missing, true
		}
		return after, false
	case !e.AETH.Syndrome.IsACK():
		after, back = e.Seq, true
	}
	if after > missing {
		return missing, true
	}
	return after, back
}

// firstMissing returns the PSN of the first response that is missing from una on.
func (r *requesterModel) firstMissing(una int64) int64 {
	ms := r.s.Messages
	i := sort.Search(len(ms), func(i int) bool { return ms[i].End() > una })
	if i = r.next[min(i, len(ms))]; i < len(ms) {
		return max(una, ms[i].First)
	}
	return 1 << 62
}

// deliverReply gives softroce's requester a reply. Credits are left out: it is not known how many
// of them the captured requester had used at that time.
func (r *requesterModel) deliverReply(e *conversation.Transmission) {
	h := e.Header
	if e.Info.Headers&packet.HasAETH != 0 && h.AETH.Syndrome.IsACK() {
		h.AETH.Syndrome = packet.CreditsUnlimited
	}
	if r.mode.waitsForRNR(e) {
		return
	}
	una, send := r.progress()
	r.reply = e
	r.receive(h, e.WholePayload())
	r.reply = nil
	r.mode.delivered(e, una, send)
	if isRNR(h.AETH.Syndrome) && e.Info.Kind == packet.KindAck {
		r.env.Now = max(r.env.Now, r.qp.NextDeadline())
	}
}

// compare compares a captured request with softroce's.
func (r *requesterModel) compare(c *conversation.Transmission, m *sentPacket) {
	if msg := r.s.MessageAt(c.Seq); msg == nil || msg.Kind == packet.KindNone {
		r.v.Compared--
		return
	}
	if c.Opcode != m.Opcode {
		r.v.differ(c, "opcode", c.Opcode.String(), m.Opcode.String())
	}
	has := c.Info.Headers & m.Opcode.Info().Headers
	for _, f := range []struct {
		name               string
		there              bool
		captured, softroce any
	}{
		{"PSN", true, c.BTH.PSN, m.BTH.PSN},
		{"solicited event", true, c.Solicited, m.Solicited},
		{"RETH", has&packet.HasRETH != 0, c.RETH, m.RETH},
		{"FETH", has&packet.HasFETH != 0, c.FETH, m.FETH},
		{"AtomicETH", has&packet.HasAtomicETH != 0, c.Atomic, m.Atomic},
		{"invalidated key", has&packet.HasIETH != 0, c.Invalidate, m.Invalidate},
		{"immediate", has&packet.HasImmDt != 0, c.Imm, m.Imm},
	} {
		if f.there && f.captured != f.softroce {
			r.v.differ(c, f.name, fmt.Sprintf("%+v", f.captured), fmt.Sprintf("%+v", f.softroce))
		}
	}
	r.v.comparePayload(c, m.payload)
	if r.strict {
		r.v.compareChoices(c, m)
	}
}

// compareRepeat compares a request with an earlier transmission of it.
func (r *requesterModel) compareRepeat(c *conversation.Transmission) {
	m := r.s.MessageAt(c.Seq)
	if m == nil || m.Kind == packet.KindNone {
		r.v.Compared--
		return
	}
	i := sort.Search(len(m.Packets), func(i int) bool { return m.Packets[i].Seq >= c.Seq })
	if i == len(m.Packets) || m.Packets[i].Seq != c.Seq || m.Packets[i] == c {
		r.v.Compared--
		return
	}
	p := m.Packets[i]
	r.compare(c, &sentPacket{p.Header, p.WholePayload()})
}
