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
	"softroce/packet"
	"softroce/wire"
)

// Options of a play.
type Options struct {
	// Context ends the play early. nil means context.Background().
	Context context.Context

	// Fast ignores the captured timing: a packet is sent as soon as those that it waits for have
	// arrived.
	Fast bool

	// Untimed accepts packets of the live NIC that come too early. The clock of its host may be
	// unreliable, for example in a virtual machine.
	Untimed bool

	// Strict compares also what an implementation may choose.
	Strict bool

	// Side is the side of each stream that is played. The default is both, one after the other.
	Side Side

	// Tap, if not nil, receives the frames on the link.
	Tap wire.FrameSink
}

// A Side is one side of a stream: its captured requester or its captured responder.
type Side string

// The sides that can be played. The live NIC is the other one.
const (
	Both      Side = ""
	Requester Side = "requester"
	Responder Side = "responder"
)

// ErrSilent is returned if the live NIC sends nothing at all.
var ErrSilent = errors.New("the live NIC does not reply")

// File plays the connections of a capture file to the NIC of a testbed, which open returns and File
// closes. Differences are not an error: the report lists them. Errors are those of capture.Load;
// replay.ErrNothing and replay.ErrMiddle if nothing can be played; ErrSilent; and those of the
// testbed. File blocks until the play ends.
func File(name string, open func(wire.FrameSink) (testbed.Testbed, error), o Options) (*Report, error) {
	from, err := capture.Open(name)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	return Read(from, open, o)
}

// Read is File for a capture that is open.
func Read(from *capture.Reader, open func(wire.FrameSink) (testbed.Testbed, error), o Options) (*Report, error) {
	ps, err := from.Packets()
	if err != nil {
		return nil, err
	}
	name := from.Name()
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
	plays, left, err := plan(ps, o)
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
	for i, play := range plays {
		st, err := play(target{b, nic, t, i, o})
		if err != nil {
			return nil, err
		}
		r.Streams = append(r.Streams, st)
	}
	r.Count = r.Differences()
	return r, nil
}

// A target is the NIC under test that the i-th side of a stream is played to.
type target struct {
	testbed   testbed.Testbed
	nic       testbed.NIC
	recording *recording
	i         int
	options   Options
}

// A playStream plays one side of a stream to a target.
type playStream func(target) (*Stream, error)

// plan returns what is played: the requester's side of all streams, then the responder's. It is no
// error if only one of the sides can be played.
func plan(ps capture.Packets, o Options) (plays []playStream, left []replay.Note, err error) {
	var requesterNotes, responderNotes []replay.Note // streams that cannot be played
	if o.Side != Responder {
		scripts, notes, failed := replay.RequesterScripts(ps)
		for _, s := range scripts {
			plays = append(plays, func(st target) (*Stream, error) { return playRequester(st, s) })
		}
		requesterNotes, err = notes, failed
	}
	if o.Side != Requester {
		scripts, notes, failed := replay.ResponderScripts(ps)
		for _, s := range scripts {
			plays = append(plays, func(st target) (*Stream, error) { return playResponder(st, s) })
		}
		responderNotes, err = notes, cmp.Or(err, failed)
	}
	if len(plays) == 0 {
		return nil, nil, err
	}
	if o.Side != Both {
		return plays, notNil(append(requesterNotes, responderNotes...)), nil
	}
	return plays, mergeNotes(requesterNotes, responderNotes), nil
}

// mergeNotes joins the notes on what cannot be played of each side.
func mergeNotes(requesterNotes, responderNotes []replay.Note) []replay.Note {
	left := []replay.Note{}
	for _, n := range requesterNotes {
		if !slices.Contains(responderNotes, n) {
			n.Text = "the requester's side: " + n.Text
		}
		left = append(left, n)
	}
	for _, n := range responderNotes {
		if !slices.Contains(requesterNotes, n) {
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

// noteUnplayed notes the replies that the live requester did not get.
func (a *responderPlayer) noteUnplayed(s *replay.ResponderScript) {
	no := s.Work[len(s.Work)-1].Packet
	if a.repliesSent < len(s.Replies) {
		no = s.Replies[a.repliesSent].Packet.No
	}
	a.changed = append(a.changed, replay.Note{Packet: no, Text: "this and later replies are not played: the live requester keeps going back, and does not send the request for it"})
}

// outcome distinguishes a live NIC that stopped sending from one that never sent, and from other
// errors.
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

// A recording keeps the packets of one network on the link, and passes each to the player.
type recording struct {
	tap      wire.FrameSink
	network  packet.Network // of the stream that is played
	frames   int
	packets  capture.Packets
	onPacket func(*capture.Packet)

	answered bool // the live NIC has sent a packet
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
		return nil // a frame of another protocol
	}
	if p.Network != t.network {
		return nil
	}
	t.packets = append(t.packets, p)
	if t.onPacket != nil {
		t.onPacket(p)
	}
	return nil
}
