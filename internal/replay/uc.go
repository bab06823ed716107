package replay

import (
	"fmt"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// UC has no replies. A UC stream can be played to a live responder, whose program shows what it
// received, or its work requests to a live requester. UD has no streams.

// unreliableStreams calls play with each stream of UC requests in a capture.
func unreliableStreams(ps capture.Packets, play func(*stream) error) error {
	captured := conversation.New(ps, packet.UC)
	for _, d := range captured.Directions {
		streams, _ := captured.Streams(d)
		for _, cs := range streams {
			if len(cs.Messages) == 0 {
				continue
			}
			if err := play(newStream(cs, d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// unreliableScript writes the script of a UC stream: all its packets as captured, with as much
// memory and as many receives as they may need.
func (s *stream) unreliableScript() *RequesterScript {
	sc := &RequesterScript{Service: packet.UC, Network: s.Requests[0].Network, From: s.report.From, To: s.report.To, PathMTU: s.PathMTU, FirstPSN: uint32(s.FirstSeq) & packet.PSNMask,
		Access: ib.AccessRemoteWrite}
	regions := map[uint32]int{}
	longest := uint64(1)
	length := uint64(0)
	receives := 0
	for _, e := range s.Requests {
		va, n, key, ok := target(e)
		st := Step{Packet: e.Packet, Header: e.Header, PSN: e.Seq - s.FirstSeq, End: e.End() - s.FirstSeq, Region: NoRegion, After: e.Time.Sub(s.Requests[0].Time)}
		switch {
		case !ok:
		case n == 0 || va+n-1 < va:
			st.Region = WrongKey
		default:
			i, known := regions[key]
			if !known {
				i = len(sc.Regions)
				regions[key] = i
				sc.Regions = append(sc.Regions, Region{RKey: key, Addr: va, Length: n, Access: ib.AccessRemoteWrite | ib.AccessLocalWrite})
			}
			sc.Regions[i].include(va, n)
			st.Region = i
		}
		if e.Info.Position.StartsMessage() {
			length = 0
		}
		length += uint64(len(e.Payload))
		longest = max(longest, length)
		// A receive for each message that consumes one, and for each that begins one: some may not
		// be completed.
		if e.Info.Kind == packet.KindSend && e.Info.Position.StartsMessage() || e.Info.Kind == packet.KindWrite && e.Info.ConsumesRecv {
			receives++
		}
		st.MinReceives, st.MaxReceives = receives, receives
		sc.Steps = append(sc.Steps, st)
	}
	for range receives {
		sc.Receives = append(sc.Receives, uint32(min(longest, transport.MaxMessage)))
	}
	return sc
}

// include extends a region to a range.
func (r *Region) include(va, n uint64) {
	last := max(r.Addr+r.Length-1, va+n-1)
	r.Addr = min(r.Addr, va)
	r.Length = last - r.Addr + 1
}

// judgeUnreliable compares what the live program received with what one on softroce receives. All
// that was sent has to arrive.
func (l *RequesterSession) judgeUnreliable() (*Stream, error) {
	var requests []*conversation.Transmission
	for i, p := range l.Packets {
		in := p.Opcode.Info()
		if in.Service == packet.UC && in.Request && conversation.Usable(p) == nil && p.Src == l.Player.Addr && p.Dst == l.Peer.Addr && p.BTH.DestQP == l.Peer.QPN {
			requests = append(requests, conversation.NewTransmission(p, i))
		}
	}
	var completions []transport.Completion
	r, err := l.responder(requests, nil, func(c *transport.Completion) { completions = append(completions, *c) })
	if err != nil {
		return nil, err
	}
	for _, e := range r.s.Requests {
		r.advance(e.Index)
		r.v.Compared++
		r.receive(r.prepare(e, nil), e.WholePayload())
		r.views.writeBack()
	}
	r.advance(len(l.Packets))
	r.compareCompletions(completions)
	r.compareMemory()
	return r.s.report, nil
}

// unreliableAnswers writes the script of a UC stream's work requests.
func (s *stream) unreliableAnswers() (*ResponderScript, error) {
	if s.Messages[0].Kind == packet.KindNone {
		return nil, fmt.Errorf("%w %v > %v: the request with PSN %s is not in it", ErrMiddle, s.report.From, s.report.To, psnText(s.FirstSeq))
	}
	w := &responderScriptWriter{s: s, ResponderScript: &ResponderScript{Service: packet.UC, Network: s.Requests[0].Network, From: s.report.From, To: s.report.To, PathMTU: s.PathMTU,
		FirstPSN: uint32(s.FirstSeq) & packet.PSNMask}}
	w.countPasses()
	w.workRequests()
	w.schedule()
	return w.ResponderScript, nil
}
