package onto

import (
	"fmt"
	"time"

	"softroce/capture"
	"softroce/capture/replay"
	"softroce/packet"
	"softroce/scenario"
	"softroce/wire"
)

// ownQPNs is how many queue pairs the player plays, one a stream, before it uses a number again.
const ownQPNs = 64

// hopLimit of what is sent.
const hopLimit = 64

// A player plays one stream.
type player struct {
	bench   scenario.Bench
	nic     scenario.NIC
	tape    *tape
	script  *replay.Script
	options Options
	session replay.Session

	name    string // of the queue pair on the live NIC
	qpn     uint32 // its number
	own     uint32 // that of the queue pair which is played
	created bool
	memory  []string // names of regions
	held    []held   // as Script.Regions
	scratch struct {
		addr, size uint64
		lkey       uint32
	}
	path  *wire.Path // to the live NIC
	paths map[lane]*wire.Path

	first   int // packets on the tape before the stream
	sent    int
	again   int
	posted  int // receives
	flushed bool
	progress
}

// A lane is what packets of one flow have in common on the way.
type lane struct {
	port   uint16
	tclass uint8
}

func newPlayer(b scenario.Bench, nic scenario.NIC, t *tape, s *replay.Script, i int, o Options) (*player, error) {
	p := &player{bench: b, nic: nic, tape: t, script: s, options: o, name: fmt.Sprint("onto", i), own: b.PeerQPN() + uint32(i%ownQPNs),
		paths: map[lane]*wire.Path{}, first: len(t.packets)}
	p.session = replay.Session{PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, MinRNRTimer: s.MinRNRTimer,
		MaxDestRDAtomic: s.MaxDestRDAtomic, Access: s.Access}
	p.progress.init()
	if err := p.set(); err != nil {
		p.strike()
		return nil, err
	}
	t.heard = p.reply
	return p, nil
}

// at is the place in the session of what comes next.
func (p *player) at() int { return len(p.tape.packets) - p.first }

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
	if err := p.answered(s.Heard); err != nil {
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
	p.sending(s)
	return p.send(s)
}

// send puts a packet on the cable.
func (p *player) send(s *replay.Step) error {
	h := s.Header
	h.DestQP, h.PKey = p.qpn, packet.DefaultPKey
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
	f := &wire.TxFrame{Path: p.lane(s.Packet)}
	f.Set(&h, s.Packet.Payload)
	p.sent++
	if err := p.bench.Send(f); err != nil {
		return err
	}
	p.bench.Run(p.bench.Now(), nil)
	return nil
}

// lane returns the path of a packet with the source port and the traffic class that it had in the capture.
func (p *player) lane(c *capture.Packet) *wire.Path {
	k := lane{c.SrcPort, c.TClass}
	if p.paths[k] == nil {
		way := *p.path
		way.SrcPort, way.TClass, way.HopLimit = c.SrcPort, c.TClass, hopLimit
		p.paths[k] = &way
	}
	return p.paths[k]
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
