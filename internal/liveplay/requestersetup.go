package liveplay

import (
	"errors"
	"fmt"
	"slices"

	"softroce/internal/ib"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/transport"
)

// Bounds on what a play needs of the live NIC's host.
const (
	maxMemory  = 256 << 20 // bytes of regions and receive buffers
	maxInspect = 1 << 20   // bytes of regions that are read back at the end
	chunk      = 4 << 10   // bytes in one line to a verbs program
	alignment  = 64        // addresses keep their offset modulo this one
)

// ErrMemory is returned for a capture whose requests access more than maxMemory bytes.
var ErrMemory = errors.New("the requests access more memory than is supported")

// A liveRegion is a memory region on the live NIC's host.
type liveRegion struct {
	name  string
	shift uint64 // added to a captured address
	start uint64 // offset of the captured region
	replay.Region
}

// setUp creates the queue pair and the memory of the script on the live NIC.
func (p *requesterPlayer) setUp() error {
	s := p.script
	largest := uint64(1)
	for _, n := range s.Receives {
		largest = max(largest, uint64(n))
	}
	total := min(largest, p.longest())
	p.scratch.size = total
	for _, r := range s.Regions {
		if total += r.Length; r.Length == 0 || r.Length > maxMemory || total > maxMemory { // length 0 stands for 2^64
			return fmt.Errorf("%w: the limit is %d bytes", ErrMemory, maxMemory)
		}
	}
	scratch, err := p.register(p.name+"-r", testbed.RegionOptions{Size: int(p.scratch.size), Access: ib.AccessLocalWrite})
	if err != nil {
		return err
	}
	p.scratch.addr, p.scratch.lkey = scratch.Addr, scratch.LKey
	for i, r := range s.Regions {
		if err := p.createRegion(i, r); err != nil {
			return err
		}
	}
	return p.createQP()
}

// longest returns the length in bytes of the longest SEND of the script.
func (p *requesterPlayer) longest() uint64 {
	most, n := uint64(1), uint64(0)
	for _, s := range p.script.Steps {
		if s.Header.Opcode.Info().Position.StartsMessage() {
			n = 0
		}
		n += uint64(len(s.Packet.Payload))
		most = max(most, n)
	}
	return most
}

// createRegion registers a region and fills it.
func (p *requesterPlayer) createRegion(i int, r replay.Region) error {
	h := liveRegion{name: fmt.Sprintf("%s-%d", p.name, i), start: r.Addr % alignment}
	live, err := p.register(h.name, testbed.RegionOptions{Size: int(h.start + r.Length), Access: r.Access})
	if err != nil {
		return err
	}
	h.shift = live.Addr + h.start - r.Addr
	h.Region = replay.Region{RKey: live.RKey, Addr: live.Addr, Length: h.start + r.Length, Access: r.Access}
	for _, w := range r.Content {
		w.RKey, w.Addr = live.RKey, w.Addr+h.shift
		h.Content = append(h.Content, w)
		if err := p.writeTo(&h, w); err != nil {
			return err
		}
	}
	p.regions = append(p.regions, h)
	p.session.Regions = append(p.session.Regions, h.Region)
	return nil
}

// writeTo lets the program write to a region.
func (p *requesterPlayer) writeTo(h *liveRegion, w replay.Write) error {
	return p.write(h.name, w.Addr-h.Addr, w.Data)
}

// createQP creates the queue pair.
func (p *requesterPlayer) createQP() error {
	s := p.script
	a := ib.QPAttr{PathMTU: s.PathMTU, RQPSN: s.FirstPSN, Access: s.Access, MaxDestRDAtomic: s.MaxDestRDAtomic, MinRNRTimer: s.MinRNRTimer}
	invalidates := slices.ContainsFunc(s.Steps, func(s replay.Step) bool { return s.Header.Opcode.Info().Headers&packet.HasIETH != 0 })
	if invalidates { // a bind is posted, which needs RTS
		a.MaxRDAtomic, a.Timeout, a.RetryCount, a.RNRRetry = 1, leastTimeout, replay.Forever, replay.Forever
	}
	if err := p.connect(s.Service, a, invalidates); err != nil {
		return err
	}
	p.session.Player, p.session.Peer = p.addresses()
	return nil
}

// postReceives posts the receives that the next packet needs, and more if the script allows it.
func (p *requesterPlayer) postReceives(s *replay.Step) error {
	if p.script.Service == packet.UC && p.posted < s.MinReceives && p.posted-p.receivesConsumed() >= queueDepth {
		if err := p.waitReceives(p.posted - queueDepth/2); err != nil {
			return err
		}
	}
	for p.posted < s.MinReceives && p.posted-p.receivesConsumed() >= queueDepth && len(p.unanswered) > 0 {
		if err := p.waitAnswered(p.unanswered[0].End); err != nil {
			return err
		}
	}
	to := min(s.MaxReceives, len(p.script.Receives), p.receivesConsumed()+queueDepth)
	if !s.Accepted {
		// It may be the rest of a message that is being refused: a receive would be too early.
		to = min(to, s.MinReceives)
	}
	if p.posted >= to || p.posted >= s.MinReceives && to-p.posted < queueDepth/2 && to < len(p.script.Receives) {
		return nil
	}
	for ; p.posted < to; p.posted++ {
		n := uint32(min(uint64(p.script.Receives[p.posted]), p.scratch.size))
		wr := transport.RecvWR{ID: uint64(p.posted), SGEs: []transport.SGE{{Addr: p.scratch.addr, Length: n, LKey: p.scratch.lkey}}}
		if err := p.nic.PostRecv(p.name, &wr); err != nil {
			return err
		}
		p.session.Receives = append(p.session.Receives, replay.Receive{At: p.index(), Length: n})
	}
	return p.poll()
}

// queueDepth is how many receives are outstanding at most. The queue has 64.
const queueDepth = 48

// poll polls the completions.
func (p *requesterPlayer) poll() error {
	l, err := p.nic.Completions()
	for _, c := range l {
		if c.QP == p.name && !c.Recv {
			p.bound++
			if c.Status != ib.WCSuccess && !p.flushed {
				p.refused = fmt.Errorf("a bind completes with %v", c.Status)
			}
		}
		if c.QP != p.name || !c.Recv {
			continue
		}
		if c.Status == ib.WCWRFlushErr {
			p.flushed = true
		}
		if !p.flushed {
			p.session.Completions = append(p.session.Completions, transport.Completion{Status: c.Status, ByteLen: c.ByteLen, Imm: c.Imm, Flags: c.Flags})
		}
	}
	return err
}

// writeMemory lets the program write what the captured one wrote, once all that was sent is
// answered.
func (p *requesterPlayer) writeMemory(ws []replay.Write) error {
	if len(ws) == 0 {
		return nil
	}
	if n := len(p.unanswered); n > 0 {
		if err := p.waitAnswered(p.unanswered[n-1].End); err != nil {
			return err
		}
	}
	for _, w := range ws {
		i := slices.IndexFunc(p.script.Regions, func(r replay.Region) bool { return r.RKey == w.RKey })
		h := &p.regions[i]
		w.RKey, w.Addr = h.RKey, w.Addr+h.shift
		if err := p.writeTo(h, w); err != nil {
			return err
		}
		p.session.Writes = append(p.session.Writes, replay.ProgramWrite{At: p.index(), Write: w})
	}
	return nil
}

// inspect reads the completions and the memory at the end.
func (p *requesterPlayer) inspect() error {
	if p.script.Service == packet.UC {
		p.testbed.Settle(nil)
		if err := p.waitReceives(len(p.script.Receives)); err != nil {
			return err
		}
	}
	if err := p.poll(); err != nil {
		return err
	}
	p.session.Packets = p.recording.packets[p.first:]
	p.session.Whole = !p.ended && len(p.unanswered) == 0
	left := uint64(maxInspect)
	for i := range p.regions {
		h := &p.regions[i]
		if h.Length > left {
			p.session.Memory = append(p.session.Memory, nil)
			continue
		}
		left -= h.Length
		b, err := p.read(h.name, 0, h.Length)
		if err != nil {
			return err
		}
		p.session.Memory = append(p.session.Memory, b)
	}
	return nil
}
