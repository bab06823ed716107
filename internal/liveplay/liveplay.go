package liveplay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/internal/testbed"
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

	// Side is what is played of each stream: both sides, one after the other, unless it says which.
	Side Side

	// Tap, if not nil, is given what is on the cable.
	Tap wire.FrameSink
}

// A Side of a stream is what the captured requester sent, or what the captured responder did.
type Side string

// The sides that can be played; the live NIC takes the other one.
const (
	Both      Side = ""
	Requester Side = "requester"
	Responder Side = "responder"
)

// ErrSilent is returned where the live NIC answers nothing at all.
var ErrSilent = errors.New("the live NIC does not reply")

// File plays the connections of a capture file onto the NIC of a bench, which is made by open and closed at the end. What the
// NIC does differently is no error: the report has it. Errors are those of capture.Load,
// replay.ErrNothing and replay.ErrMiddle where there is nothing that can be played, ErrSilent, and what the
// bench refuses. It blocks until the end of the play.
func File(name string, open func(wire.FrameSink) (testbed.Testbed, error), o Options) (*Report, error) {
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
func Packets(ps capture.Packets, open func(wire.FrameSink) (testbed.Testbed, error), o Options) (r *Report, err error) {
	acts, left, err := plan(ps, o)
	if err != nil {
		return nil, err
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	t := &recording{tap: o.Tap}
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
	for i, play := range acts {
		st, err := play(target{b, nic, t, i, o})
		if err != nil {
			return nil, err
		}
		r.Streams = append(r.Streams, st)
	}
	r.Count = r.Differences()
	return r, nil
}

// A target is what a side of a stream is played on, as the i-th.
type target struct {
	testbed   testbed.Testbed
	nic       testbed.NIC
	recording *recording
	i         int
	options   Options
}

// A playStream plays one side of a stream.
type playStream func(target) (*Stream, error)

// plan returns what is played: the requester's side of all streams, then the responder's. That one of the sides cannot be
// played is no error where the other can.
func plan(ps capture.Packets, o Options) (acts []playStream, left []replay.Note, err error) {
	var asking, answering []replay.Note // that cannot be played
	if o.Side != Responder {
		scripts, notes, failed := replay.RequesterScripts(ps)
		for _, s := range scripts {
			acts = append(acts, func(st target) (*Stream, error) { return playRequester(st, s) })
		}
		asking, err = notes, failed
	}
	if o.Side != Requester {
		scripts, notes, failed := replay.ResponderScripts(ps)
		for _, s := range scripts {
			acts = append(acts, func(st target) (*Stream, error) { return playResponder(st, s) })
		}
		answering, err = notes, cmp.Or(err, failed)
	}
	if len(acts) == 0 {
		return nil, nil, err
	}
	if o.Side != Both {
		return acts, notNil(append(asking, answering...)), nil
	}
	return acts, mergeNotes(asking, answering), nil
}

// mergeNotes puts together what cannot be played of either side.
func mergeNotes(asking, answering []replay.Note) []replay.Note {
	left := []replay.Note{}
	for _, n := range asking {
		if !slices.Contains(answering, n) {
			n.Text = "the requester's side: " + n.Text
		}
		left = append(left, n)
	}
	for _, n := range answering {
		if !slices.Contains(asking, n) {
			n.Text = "the responder's side: " + n.Text
			left = append(left, n)
		}
	}
	return left
}

// playRequester plays the requester's side of a stream.
func playRequester(st target, s *replay.RequesterScript) (_ *Stream, err error) {
	p, err := newRequesterPlayer(st, s)
	if err != nil {
		return nil, fmt.Errorf("%v > %v: %w", s.From, s.To, err)
	}
	defer func() { err = errors.Join(err, p.destroy()) }()
	silent, err := p.outcome(p.play())
	if err != nil {
		return nil, err
	}
	if err := p.inspect(); err != nil {
		return nil, err
	}
	judged, err := p.session.Judge(replay.Options{Strict: st.options.Strict})
	if err != nil {
		return nil, err
	}
	r := &Stream{Side: Requester, From: s.From, To: s.To, Peer: p.session.Peer, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN,
		Sent: p.sent, SentAgain: p.retransmitted, LeftOut: s.Lost, Requests: judged.Requests, Replies: judged.Replies, NotPlayed: append(notNil(s.NotPlayed), p.changed...), Responder: &judged.Responder}
	if silent {
		judged.Responder.Differences = append(judged.Responder.Differences, replay.Difference{PSN: p.psn(p.unanswered[0].PSN), Field: "reply",
			Captured: fmt.Sprintf("none, after %d transmissions", maxRetransmits+1), Softroce: "an answer"})
	}
	return r, nil
}

// playResponder plays the responder's side of a stream.
func playResponder(st target, s *replay.ResponderScript) (_ *Stream, err error) {
	a, err := newResponderPlayer(st, s)
	if err != nil {
		return nil, fmt.Errorf("%v > %v: %w", s.From, s.To, err)
	}
	defer func() { err = errors.Join(err, a.destroy()) }()
	err = a.play()
	if errors.Is(err, errNoProgress) {
		a.noteUnplayed(s)
		err = nil
	}
	if a.session.Silent, err = a.outcome(err); err != nil {
		return nil, err
	}
	if err := a.inspect(); err != nil {
		return nil, err
	}
	a.session.Lossy = a.retransmitted > 0
	judged, err := a.session.Judge(replay.Options{Strict: st.options.Strict})
	if err != nil {
		return nil, err
	}
	return &Stream{Side: Responder, From: s.From, To: s.To, Peer: a.session.Peer, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, Posted: len(a.session.Posted),
		Sent: a.repliesSent + a.retransmitted, SentAgain: a.retransmitted, LeftOut: s.Lost, Requests: judged.Requests, Replies: judged.Replies,
		NotPlayed: append(notNil(s.NotPlayed), a.changed...), Requester: &judged.Requester}, nil
}

// noteUnplayed notes what the live requester did not get to.
func (a *responderPlayer) noteUnplayed(s *replay.ResponderScript) {
	no := s.Work[len(s.Work)-1].Packet
	if a.repliesSent < len(s.Replies) {
		no = s.Replies[a.repliesSent].Packet.No
	}
	a.changed = append(a.changed, replay.Note{Packet: no, Text: "this and later replies are not played: the live requester keeps going back, and does not send the request for it"})
}

// outcome tells a live NIC that fell silent from one that never said anything, and from other errors.
func (s *endpoint) outcome(err error) (silent bool, _ error) {
	if errors.Is(err, errIdle) {
		if !s.recording.answered {
			return false, fmt.Errorf("%w: %v, QP %#x", ErrSilent, s.nic.Addr(), s.qpn)
		}
		return true, nil
	}
	return false, err
}

func notNil(l []replay.Note) []replay.Note { return append([]replay.Note{}, l...) }

// A recording keeps the RoCEv2 packets of the link and tells the player of each.
type recording struct {
	tap      wire.FrameSink
	frames   int
	packets  capture.Packets
	onPacket func(*capture.Packet)

	answered bool // the live NIC has said something
}

// WriteFrame implements wire.FrameSink.
func (t *recording) WriteFrame(ns int64, iface int, b []byte) error {
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
	if t.onPacket != nil {
		t.onPacket(p)
	}
	return nil
}
