package replay

import (
	"fmt"

	"softroce/capture"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// Nothing answers a UC stream. What can be played of it is the requests, to a live responder, whose program tells what it
// received; and the work, to a live requester. UD has no streams.

// unreliableStreams lets play have each stream of UC requests in a capture.
func unreliableStreams(ps capture.Packets, play func(*stream) error) error {
	byKey := map[flowKey]*flow{}
	var flows []*flow
	s := &sorter{asked: map[askedKey][]*run{}}
	for i, p := range ps {
		in := p.Opcode.Info()
		if in.Service != packet.UC || !in.Request || unfit(p) != "" {
			continue
		}
		k := flowKey{p.Src, p.Dst, p.BTH.DestQP}
		f := byKey[k]
		if f == nil {
			f = &flow{key: k, number: len(flows)}
			byKey[k] = f
			flows = append(flows, f)
		}
		s.addRequest(f, &event{Packet: p, info: in, at: i, pos: i})
	}
	for _, f := range flows {
		for _, r := range f.runs {
			st := newStream(r, nil, talk{}, ps)
			if st.lastWord = -1; len(st.messages) == 0 {
				continue
			}
			st.report = &Stream{From: f.sender(), To: f.receiver(), Responder: newVerdict(), Requester: newVerdict()}
			if err := play(st); err != nil {
				return err
			}
		}
	}
	return nil
}

// unreliableScript makes the script of a UC stream: all its packets, as they were captured, with as much memory and as
// many receives as they can want.
func (s *stream) unreliableScript() *Script {
	sc := &Script{Service: packet.UC, From: s.report.From, To: s.report.To, PathMTU: s.mtu, FirstPSN: uint32(s.base) & packet.PSNMask,
		Access: ib.AccessRemoteWrite}
	regions := map[uint32]int{}
	longest := uint64(1)
	length := uint64(0)
	receives := 0
	for _, e := range s.requests {
		va, n, key, ok := target(e)
		st := Step{Packet: e.Packet, Header: e.Header, PSN: e.psn - s.base, End: e.end() - s.base, Region: NoRegion, After: e.Time.Sub(s.requests[0].Time)}
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
		if e.info.Position.StartsMessage() {
			length = 0
		}
		length += uint64(len(e.Payload))
		longest = max(longest, length)
		// A receive for each message that wants one, and for each that begins: some may end in nothing.
		if e.info.Kind == packet.KindSend && e.info.Position.StartsMessage() || e.info.Kind == packet.KindWrite && e.info.ConsumesRecv {
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

// include makes a region reach over a range.
func (r *Region) include(va, n uint64) {
	last := max(r.Addr+r.Length-1, va+n-1)
	r.Addr = min(r.Addr, va)
	r.Length = last - r.Addr + 1
}

// judgeUnreliable holds what the live program received against what one on softroce would have: all that was sent has
// to have arrived.
func (l *Session) judgeUnreliable() (*Stream, error) {
	run := &run{}
	for i, p := range l.Packets {
		in := p.Opcode.Info()
		if in.Service == packet.UC && in.Request && unfit(p) == "" && p.Src == l.Player.Addr && p.Dst == l.Peer.Addr && p.BTH.DestQP == l.Peer.QPN {
			run.events = append(run.events, &event{Packet: p, info: in, at: i, pos: i})
		}
	}
	var completions []transport.Completion
	r, err := l.responder(run, nil, func(c *transport.Completion) { completions = append(completions, *c) })
	if err != nil {
		return nil, err
	}
	for _, e := range r.s.requests {
		l.until(r, e.at)
		r.v.Compared++
		r.receive(r.prepare(e, nil), e.Payload)
		r.lent.settle()
	}
	l.until(r, len(l.Packets))
	r.compareCompletions(l, completions)
	r.compareMemory(l)
	return r.s.report, nil
}

// unreliableAnswers makes the script of a UC stream's work.
func (s *stream) unreliableAnswers() (*AnswerScript, error) {
	if s.messages[0].kind == packet.KindNone {
		return nil, fmt.Errorf("%w %v > %v: the request with PSN %s is not in it", ErrMiddle, s.report.From, s.report.To, psnText(s.base))
	}
	w := &answerwriter{s: s, AnswerScript: &AnswerScript{Service: packet.UC, From: s.report.From, To: s.report.To, PathMTU: s.mtu,
		FirstPSN: uint32(s.base) & packet.PSNMask}}
	w.passes()
	w.work()
	w.jobs()
	return w.AnswerScript, nil
}
