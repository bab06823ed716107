package liveplay

import (
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
)

// A requesterPlayer plays the requester's side of one stream.
type requesterPlayer struct {
	endpoint
	script  *replay.RequesterScript
	session replay.RequesterSession

	regions  []liveRegion     // indexed like RequesterScript.Regions
	windows  map[int64]uint32 // keys that SENDs invalidate, by PSN
	bound    int              // number of completed binds
	refused  error            // why no window can be bound, nil if one can
	bindable testbed.Region
	changed  []replay.Note
	scratch  struct {
		addr, size uint64
		lkey       uint32
	}

	sent          int
	retransmitted int
	posted        int // receives
	flushed       bool
	requesterProgress
}

func newRequesterPlayer(st target, s *replay.RequesterScript) (*requesterPlayer, error) {
	p := &requesterPlayer{endpoint: newEndpoint(st, s.Network), script: s}
	p.session = replay.RequesterSession{Service: s.Service, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, MinRNRTimer: s.MinRNRTimer,
		MaxDestRDAtomic: s.MaxDestRDAtomic, Access: s.Access}
	p.requesterProgress.init()
	if err := p.setUp(); err != nil {
		p.destroy()
		return nil, err
	}
	st.recording.onPacket = p.reply
	return p, nil
}

// psn returns the PSN on the wire of one of the script.
func (p *requesterPlayer) psn(n int64) uint32 {
	return uint32(int64(p.script.FirstPSN)+n) & packet.PSNMask
}

// play sends all packets and waits for the last reply.
func (p *requesterPlayer) play() error {
	start := p.testbed.Now()
	for i := range p.script.Steps {
		s := &p.script.Steps[i]
		if err := p.options.Context.Err(); err != nil {
			return err
		}
		if p.ended {
			break
		}
		if !p.options.Fast {
			p.testbed.Run(start+s.After, nil)
		}
		if err := p.step(s); err != nil {
			return err
		}
	}
	if n := len(p.unanswered); n > 0 {
		if err := p.waitAnswered(p.unanswered[n-1].End); err != nil {
			return err
		}
	}
	p.linger(nakWait, func() bool { return false })
	return nil
}

// step sends one packet, once the state is that in which the captured one was sent.
func (p *requesterPlayer) step(s *replay.Step) error {
	if err := p.waitAnswered(s.AnsweredBefore); err != nil {
		return err
	}
	// A responder that is slow to send an RNR NAK must not find a receive meanwhile.
	p.linger(rnrWait, func() bool { return p.rnrs >= s.RNRNAKs })
	p.linger(nakWait, func() bool { return p.naks >= s.SequenceNAKs })
	for p.atLimit(s) {
		if err := p.waitAnswered(p.unanswered[0].End); err != nil {
			return err
		}
	}
	if err := p.writeMemory(s.Writes); err != nil {
		return err
	}
	if err := p.postReceives(s); err != nil {
		return err
	}
	if err := p.bind(s); err != nil {
		return err
	}
	p.awaitResponses(s)
	p.noteSent(s)
	return p.send(s)
}

// awaitResponses waits for the responses to READs and atomics before one of them is repeated, and
// to repeated ones before anything else is sent: a responder may send pending responses in the
// order of their PSNs, and answer a request once that arrives twice before its response leaves.
func (p *requesterPlayer) awaitResponses(s *replay.Step) {
	repeated := s.PSN < p.sentEnd && s.Header.Opcode.Info().Kind.HasOwnResponse()
	if repeated || p.repeating {
		p.linger(responseWait, func() bool { return len(p.responses) == 0 })
		clear(p.responses)
	}
	p.repeating = repeated
	if repeated || s.Accepted && s.Header.Opcode.Info().Kind.HasOwnResponse() {
		p.responses[s.End-1] = true
	}
}

// send sends a packet.
func (p *requesterPlayer) send(s *replay.Step) error {
	h := s.Header
	if h.Opcode.Info().Headers&packet.HasIETH != 0 {
		h.Invalidate = p.windows[s.PSN]
	}
	switch s.Region {
	case replay.NoRegion:
	case replay.WrongKey:
		key := p.wrongKey()
		h.RETH.RKey, h.Atomic.RKey = key, key
	default:
		m := &p.regions[s.Region]
		h.RETH.RKey, h.Atomic.RKey = m.RKey, m.RKey
		h.RETH.VA += m.shift
		h.Atomic.VA += m.shift
	}
	p.sent++
	return p.transmit(s.Packet, h)
}

// wrongKey returns an R_Key that is none of the live regions'.
func (p *requesterPlayer) wrongKey() uint32 {
	key := uint32(0x5ca1ab1e)
	for i := range p.regions {
		if p.regions[i].RKey == key {
			key++
		}
	}
	return key
}

// parse parses a frame of the link.
func parse(no int, ns int64, b []byte) (*capture.Packet, error) {
	return capture.Parse(capture.Record{No: no, Time: time.Unix(0, ns), LinkType: capture.Ethernet, Length: len(b),
		Data: append([]byte(nil), b...)})
}
