package replay

import (
	"errors"
	"fmt"

	"softroce/capture"
	"softroce/packet"
)

// Options of a replay.
type Options struct {
	// Strict compares also what an implementation may choose.
	Strict bool
}

// File replays a capture file. Differences are no error: the report has them. Errors are
// those of capture.Open and capture.Reader.
func File(name string, o Options) (*Report, error) {
	r, err := capture.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var ps capture.Packets
	var bad []Note
	for rec, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		p, err := capture.Parse(rec)
		switch {
		case err == nil:
			ps = append(ps, p)
		case !errors.Is(err, packet.ErrNotRoCE):
			bad = append(bad, Note{rec.No, err.Error()})
		}
	}
	report, err := Packets(ps, o)
	if err != nil {
		return nil, err
	}
	report.File = name
	report.Skipped = append(bad, report.Skipped...)
	return report, nil
}

// Packets replays packets that were captured in this order.
func Packets(ps capture.Packets, o Options) (*Report, error) {
	sorted := sortFlows(ps)
	r := &Report{Strict: o.Strict, RoCE: len(ps), RC: sorted.rc, Skipped: sorted.skipped, Connections: []*Connection{}}
	for _, f := range sorted.flows {
		if f.peer != nil && f.peer.number < f.number {
			continue
		}
		c, skipped, err := replayConnection(f, sorted.talk, ps, o)
		if err != nil {
			return nil, err
		}
		r.Skipped = append(r.Skipped, skipped...)
		if c != nil {
			r.Connections = append(r.Connections, c)
		}
	}
	var verdicts []*Verdict
	for _, c := range r.Connections {
		for _, s := range c.Streams {
			verdicts = append(verdicts, &s.Responder, &s.Requester)
		}
	}
	resolve(verdicts)
	r.Count = r.Differences()
	return r, nil
}

// replayConnection replays a flow and the one that answers it.
func replayConnection(f *flow, t talk, ps capture.Packets, o Options) (*Connection, []Note, error) {
	c := &Connection{A: f.sender(), B: f.receiver(), Streams: []*Stream{}}
	var skipped []Note
	for _, way := range []*flow{f, f.peer} {
		if way == nil || way != f && way == f.peer && f.peer == f {
			continue
		}
		byRun, strays := way.assign()
		if len(strays) > 0 {
			skipped = append(skipped, Note{strays[0].No, fmt.Sprintf("%s to %v without a request in the capture, this the first",
				count(len(strays), "reply"), way.sender())})
		}
		for i, r := range way.runs {
			s := newStream(r, byRun[i], t, ps)
			s.lastWord = way.peer.lastWord()
			s.dead = f.refuses() || f.peer != nil && f.peer.refuses()
			s.report = &Stream{From: way.sender(), To: way.receiver(), Requests: len(s.requests), Replies: len(s.replies),
				PathMTU: s.mtu, FirstPSN: r.events[0].BTH.PSN, Responder: newVerdict(), Requester: newVerdict()}
			c.Streams = append(c.Streams, s.report)
			if err := s.replay(o); err != nil {
				return nil, nil, err
			}
		}
	}
	if f.peer == nil && len(f.runs) == 0 {
		skipped = append(skipped, Note{f.replies[0].No, fmt.Sprintf("%s to %v without a request in the capture, this the first",
			count(len(f.replies), "reply"), f.receiver())})
	}
	if len(c.Streams) == 0 {
		return nil, skipped, nil
	}
	return c, skipped, nil
}

// replay fills in the verdicts on a stream.
func (s *stream) replay(o Options) error {
	if err := replayResponder(s, o.Strict); err != nil {
		return err
	}
	if err := replayRequester(s, o.Strict); err != nil {
		return err
	}
	if o.Strict {
		s.comparePaths()
	}
	return nil
}

func newVerdict() Verdict {
	return Verdict{Lost: []Note{}, Copied: []Note{}, Overtaken: []Note{}, Departures: []Departure{}, NotJudged: []Note{}, Differences: []Difference{}}
}

// receiver is the end that the flow's packets go to.
func (f *flow) receiver() End { return End{f.key.dst, f.key.qpn, true} }

// sender is the end that they come from; its number is known from the packets that go back.
func (f *flow) sender() End {
	if f.peer == nil {
		return End{Addr: f.key.src}
	}
	return End{f.key.src, f.peer.key.qpn, true}
}

// lastWord returns the place of the last packet of a flow, or -1.
func (f *flow) lastWord() int {
	last := -1
	if f == nil {
		return last
	}
	for _, r := range f.runs {
		last = max(last, r.events[len(r.events)-1].at)
	}
	if len(f.replies) > 0 {
		last = max(last, f.replies[len(f.replies)-1].at)
	}
	return last
}

// refuses reports whether the sender of a flow refuses a request for good.
func (f *flow) refuses() bool {
	for _, e := range f.replies {
		if e.info.Kind == packet.KindAck && isFatal(e.AETH.Syndrome) {
			return true
		}
	}
	return false
}

// assign finds the run of requests that each reply belongs to, among those that began before it: the
// one whose PSNs it is near, else the latest.
func (f *flow) assign() (byRun [][]*event, strays []*event) {
	byRun = make([][]*event, len(f.runs))
	if f.peer == nil {
		return byRun, nil
	}
	for _, ev := range f.peer.replies {
		found := -1
		for i := len(f.runs) - 1; i >= max(0, len(f.runs)-maxRuns); i-- {
			r := f.runs[i]
			if r.events[0].at > ev.at {
				continue
			}
			if d := packet.PSNDiff(ev.BTH.PSN, r.next); -runReach < d && d < runReach {
				found = i
				break
			}
			if found < 0 {
				found = i
			}
		}
		if found < 0 {
			strays = append(strays, ev)
			continue
		}
		byRun[found] = append(byRun[found], ev)
	}
	return byRun, strays
}
