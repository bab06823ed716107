package replay

import (
	"errors"
	"fmt"
	"iter"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// Options of a replay.
type Options struct {
	// Strict compares also what an implementation may choose.
	Strict bool

	// Progress, if it is not nil, is called before each flow of the capture with the number of
	// those before it, and of all. If it returns an error, the replay ends with that and a report
	// on the flows before.
	Progress func(done, total int) error
}

// File replays a capture file. Differences are not an error: the report lists them. Errors are
// those of capture.Open and capture.Reader.
func File(name string, o Options) (*Report, error) {
	r, err := capture.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return Read(r, o)
}

// Read is File for a capture that is open.
func Read(r *capture.Reader, o Options) (*Report, error) {
	var ps capture.Packets
	in := input{headless: map[conversation.FlowKey]bool{}}
	for rec, err := range r.Records() {
		if err != nil {
			return nil, err
		}
		p, err := conversation.Parse(rec)
		switch {
		case err == nil:
			ps = append(ps, p)
			in.cut += bit(conversation.IsCut(p.Record))
		case !errors.Is(err, packet.ErrNotRoCE):
			in.bad = append(in.bad, Note{rec.No, err.Error()})
			if k, ok := conversation.CutKey(rec); ok {
				in.headless[k] = true
			}
		}
	}
	report, err := in.replay(ps, o)
	if report != nil {
		report.File = r.Name()
	}
	return report, err
}

// An input is what a file holds besides packets.
type input struct {
	bad      []Note                        // frames that are no packets
	cut      int                           // packets without the end of their payload
	headless map[conversation.FlowKey]bool // flows with packets of which even headers were cut
}

// Packets replays packets that were captured in this order.
func Packets(ps capture.Packets, o Options) (*Report, error) { return input{}.replay(ps, o) }

func (in input) replay(ps capture.Packets, o Options) (*Report, error) {
	rc, skipped := unusable(ps)
	skipped = append(in.bad, skipped...)
	r := &Report{Strict: o.Strict, RoCE: len(ps), RC: rc, Skipped: skipped, Unpaired: []string{}, Connections: []*Connection{}}
	captured := conversation.New(ps, packet.RC)
	r.Views, r.Cut = captured.Views, in.cut
	r.unpaired(captured.Directions)
	var stopped error
	for i, d := range captured.Directions {
		if o.Progress != nil {
			if stopped = o.Progress(i, len(captured.Directions)); stopped != nil {
				break
			}
		}
		if d.Peer != nil && d.Peer.Number < d.Number {
			continue
		}
		if in.headless[d.FlowKey] || d.Peer != nil && in.headless[d.Peer.FlowKey] {
			r.Headless++
			continue
		}
		c, skipped, err := replayConnection(captured, d, o)
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
	r.Count, r.Compared = r.Differences(), r.compared()
	r.NotCompared, r.Verdict = append([]string{}, r.Incomplete()...), ComparedText(r.Count, r.Compared)
	return r, stopped
}

// replayConnection replays a direction and the opposite one.
func replayConnection(captured *conversation.Capture, d *conversation.Direction, o Options) (*Connection, []Note, error) {
	c := &Connection{A: sender(d), B: receiver(d), Streams: []*Stream{}}
	var skipped []Note
	for _, way := range directions(d) {
		streams, unrequested := captured.Streams(way)
		if len(unrequested) > 0 {
			skipped = append(skipped, Note{unrequested[0].No, fmt.Sprintf("%s to %v without a request in the capture; this is the first",
				Count(len(unrequested), "reply"), sender(way))})
		}
		for _, cs := range streams {
			s := newStream(cs, way)
			c.Streams = append(c.Streams, s.report)
			if err := s.replay(o); err != nil {
				return nil, nil, err
			}
		}
	}
	if d.Peer == nil && !d.HasRequests() {
		skipped = append(skipped, Note{d.Replies[0].No, fmt.Sprintf("%s to %v without a request in the capture; this is the first",
			Count(len(d.Replies), "reply"), receiver(d))})
	}
	if len(c.Streams) == 0 {
		return nil, skipped, nil
	}
	return c, skipped, nil
}

// directions returns a direction and the opposite one, if it is known and another one.
func directions(d *conversation.Direction) []*conversation.Direction {
	if d.Peer == nil || d.Peer == d {
		return []*conversation.Direction{d}
	}
	return []*conversation.Direction{d, d.Peer}
}

// replay fills in the verdicts on a stream. Where the order of the replies is not certain, or the
// capture begins inside a retransmission, another reading of it counts if it compares something and
// leaves no differences.
func (s *stream) replay(o Options) error {
	if err := s.replayReading(o); err != nil {
		return err
	}
	for other := range s.otherReadings() {
		if s.unexplained() == 0 {
			break
		}
		t := newStream(other, s.direction)
		if err := t.replayReading(o); err != nil {
			return err
		}
		if t.unexplained() == 0 && t.report.compared() > 0 {
			*s.report = *t.report
		}
	}
	return nil
}

// otherReadings returns the readings of a stream but for the first one.
func (s *stream) otherReadings() iter.Seq[*conversation.Stream] {
	return func(yield func(*conversation.Stream) bool) {
		if m := s.ByMSN(); m != nil && !yield(m) {
			return
		}
		s.Later()(yield)
	}
}

// unexplained counts the differences of both sides.
func (s *stream) unexplained() int {
	return s.report.Responder.unexplained() + s.report.Requester.unexplained()
}

func (s *stream) replayReading(o Options) error {
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
	return Verdict{Lost: []Note{}, Copied: []Note{}, Overtaken: []Note{}, Deviations: []Deviation{}, NotJudged: []Note{}, Differences: []Difference{}}
}
