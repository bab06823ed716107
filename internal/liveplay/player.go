package liveplay

import (
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
)

// A player plays the requester's side of one stream.
type player struct {
	seat
	script  *replay.RequesterScript
	session replay.RequesterSession

	held     []held           // as Script.Regions
	windows  map[int64]uint32 // keys that a SEND invalidates, by its PSN
	bound    int              // of them, as completions say
	refused  error            // why there is none
	bindable testbed.Region
	plain    []replay.Note
	scratch  struct {
		addr, size uint64
		lkey       uint32
	}

	sent    int
	again   int
	posted  int // receives
	flushed bool
	progress
}

func newPlayer(st stage, s *replay.RequesterScript) (*player, error) {
	p := &player{seat: newSeat(st), script: s}
	p.session = replay.RequesterSession{Service: s.Service, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, MinRNRTimer: s.MinRNRTimer,
		MaxDestRDAtomic: s.MaxDestRDAtomic, Access: s.Access}
	p.progress.init()
	if err := p.set(); err != nil {
		p.strike()
		return nil, err
	}
	st.tape.heard = p.reply
	return p, nil
}

// psn makes a PSN of the script one of the wire.
func (p *player) psn(n int64) uint32 { return uint32(int64(p.script.FirstPSN)+n) & packet.PSNMask }

// play sends everything and waits for the last answer.
func (p *player) play() error {
	start := p.bench.Now()
	for i := range p.script.Steps {
		s := &p.script.Steps[i]
		if err := p.options.Context.Err(); err != nil {
			return err
		}
		if p.dead {
			break
		}
		if !p.options.Fast {
			p.bench.Run(start+s.After, nil)
		}
		if err := p.step(s); err != nil {
			return err
		}
	}
	if n := len(p.due); n > 0 {
		if err := p.answered(p.due[n-1].End); err != nil {
			return err
		}
	}
	p.linger(lateWait, func() bool { return false })
	return nil
}

// step sends one packet, when all is as it was when the captured one was sent.
func (p *player) step(s *replay.Step) error {
	if err := p.answered(s.AnsweredBefore); err != nil {
		return err
	}
	// Who is slow to say that it has no receive must not be given one meanwhile.
	p.linger(rnrWait, func() bool { return p.rnrs >= s.RNRNAKs })
	p.linger(lateWait, func() bool { return p.naks >= s.SequenceNAKs })
	for p.full(s) {
		if err := p.answered(p.due[0].End); err != nil {
			return err
		}
	}
	if err := p.writes(s.Writes); err != nil {
		return err
	}
	if err := p.receives(s); err != nil {
		return err
	}
	if err := p.bind(s); err != nil {
		return err
	}
	p.sending(s)
	return p.send(s)
}

// send puts a packet on the cable.
func (p *player) send(s *replay.Step) error {
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
		m := &p.held[s.Region]
		h.RETH.RKey, h.Atomic.RKey = m.RKey, m.RKey
		h.RETH.VA += m.shift
		h.Atomic.VA += m.shift
	}
	p.sent++
	return p.transmit(s.Packet, h)
}

// wrongKey returns an R_Key that is nobody's.
func (p *player) wrongKey() uint32 {
	key := uint32(0x5ca1ab1e)
	for i := range p.held {
		if p.held[i].RKey == key {
			key++
		}
	}
	return key
}

// parse takes a frame apart.
func parse(no int, ns int64, b []byte) (*capture.Packet, error) {
	return capture.Parse(capture.Record{No: no, Time: time.Unix(0, ns), LinkType: capture.Ethernet, Length: len(b),
		Data: append([]byte(nil), b...)})
}
