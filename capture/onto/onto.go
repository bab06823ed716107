package onto

import (
	"context"
	"errors"
	"fmt"

	"softroce/capture"
	"softroce/capture/replay"
	"softroce/scenario"
	"softroce/wire"
)

// Options of a play.
type Options struct {
	// Context ends it early; nil stands for one that does not end.
	Context context.Context

	// Fast does not keep to the captured timing: packets go as soon as what they wait for has come.
	Fast bool

	// Strict compares also what an implementation may choose.
	Strict bool

	// Tap, if not nil, is given what is on the cable.
	Tap wire.FrameSink
}

// ErrSilent is returned where the live NIC answers nothing at all.
var ErrSilent = errors.New("the live NIC does not answer")

// File plays the connections of a capture file onto the NIC of a bench, which is made by open and closed at the end. What the
// NIC does differently is no error: the report has it. Errors are those of capture.Load,
// replay.ErrNothing and replay.ErrMiddle where there is nothing that can be played, ErrSilent, and what the
// bench refuses. It blocks until the end of the play.
func File(name string, open func(wire.FrameSink) (scenario.Bench, error), o Options) (*Report, error) {
	ps, err := capture.Load(name)
	if err != nil {
		return nil, err
	}
	r, err := Packets(ps, open, o)
	if err != nil && (errors.Is(err, replay.ErrNothing) || errors.Is(err, replay.ErrMiddle)) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	r.File = name
	return r, nil
}

// Packets plays the connections of packets that were captured in this order. See File.
func Packets(ps capture.Packets, open func(wire.FrameSink) (scenario.Bench, error), o Options) (r *Report, err error) {
	scripts, left, err := replay.Scripts(ps)
	if err != nil {
		return nil, err
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	t := &tape{tap: o.Tap}
	b, err := open(t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	nic, err := b.NIC(false)
	if err != nil {
		return nil, err
	}
	r = &Report{Strict: o.Strict, Left: left, Streams: []*Stream{}}
	for i, s := range scripts {
		st, err := play(b, nic, t, s, i, o)
		if err != nil {
			return nil, err
		}
		r.Streams = append(r.Streams, st)
	}
	r.Count = r.Differences()
	return r, nil
}

// play plays one stream.
func play(b scenario.Bench, nic scenario.NIC, t *tape, s *replay.Script, i int, o Options) (_ *Stream, err error) {
	p, err := newPlayer(b, nic, t, s, i, o)
	if err != nil {
		return nil, fmt.Errorf("%v > %v: %w", s.From, s.To, err)
	}
	defer func() { err = errors.Join(err, p.strike()) }()
	silent := p.play()
	switch {
	case errors.Is(silent, errSilence) && !t.answered:
		return nil, fmt.Errorf("%w: %v, QP %#x", ErrSilent, nic.Addr(), p.qpn)
	case silent != nil && !errors.Is(silent, errSilence):
		return nil, silent
	}
	if err := p.inspect(); err != nil {
		return nil, err
	}
	judged, err := p.session.Judge(replay.Options{Strict: o.Strict})
	if err != nil {
		return nil, err
	}
	st := &Stream{From: s.From, To: s.To, Peer: p.session.Peer, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN,
		Sent: p.sent, SentAgain: p.again, LeftOut: s.Lost, Replies: judged.Replies, NotPlayed: s.NotPlayed, Verdict: judged.Responder}
	if st.NotPlayed == nil {
		st.NotPlayed = []replay.Note{}
	}
	if silent != nil {
		st.Verdict.Differences = append(st.Verdict.Differences, replay.Difference{PSN: p.psn(p.due[0].PSN), Field: "reply",
			Captured: fmt.Sprintf("none, though it was sent %d times", patience+1), Softroce: "an answer"})
	}
	return st, nil
}

// A tape keeps the RoCEv2 packets of the link and tells the player of each.
type tape struct {
	tap     wire.FrameSink
	frames  int
	packets capture.Packets
	heard   func(*capture.Packet)

	answered bool // the live NIC has said something
}

// WriteFrame implements wire.FrameSink.
func (t *tape) WriteFrame(ns int64, iface int, b []byte) error {
	t.frames++
	if t.tap != nil {
		if err := t.tap.WriteFrame(ns, iface, b); err != nil {
			return err
		}
	}
	p, err := parse(t.frames, ns, b)
	if err != nil {
		return nil // another protocol's
	}
	t.packets = append(t.packets, p)
	if t.heard != nil {
		t.heard(p)
	}
	return nil
}
