package liveplay

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/transport"
)

// leastTimeout is the code of the local ACK timeout of a queue pair that only binds: 67 ms.
const leastTimeout = 14

// bind binds a type 2 window for a SEND with invalidate, one for each. If the live NIC cannot bind
// one, the step becomes a SEND without invalidate.
func (p *requesterPlayer) bind(s *replay.Step) error {
	if s.Header.Opcode.Info().Headers&packet.HasIETH == 0 {
		return nil
	}
	if _, ok := p.windows[s.PSN]; ok {
		return nil
	}
	key, err := p.window()
	if err != nil {
		p.changed = append(p.changed, replay.Note{Packet: s.Packet.No, Text: fmt.Sprintf("played as a SEND without invalidate: %v", err)})
		s.WithoutInvalidate()
		return nil
	}
	p.windows[s.PSN] = key
	p.session.Windows = append(p.session.Windows, key)
	return nil
}

// window allocates a window, and waits until it is bound.
func (p *requesterPlayer) window() (key uint32, err error) {
	if p.refused != nil {
		return 0, p.refused
	}
	region := p.name + "-w"
	if p.windows == nil {
		p.windows = map[int64]uint32{}
		r, err := p.register(region, testbed.RegionOptions{Size: 1, Access: ib.AccessLocalWrite | ib.AccessMWBind})
		if err != nil {
			return 0, err
		}
		p.bindable = r
	}
	name := fmt.Sprint(region, len(p.session.Windows))
	fresh, err := p.nic.AllocMW(name, ib.MWType2, "")
	if err != nil {
		return 0, err
	}
	p.mws = append(p.mws, name)
	wr := transport.SendWR{ID: uint64(len(p.session.Windows)), Flags: ib.SendSignaled, Opcode: ib.WRBindMW, RKey: fresh&^0xff | (fresh+1)&0xff,
		Bind: transport.Bind{LKey: p.bindable.LKey, Addr: p.bindable.Addr, Length: 1, Access: ib.AccessRemoteWrite}}
	if key, err = p.nic.PostBind(p.name, name, region, &wr); err != nil {
		return 0, err
	}
	want := len(p.session.Windows) + 1
	for end := p.testbed.Now() + rnrWait; p.bound < want && p.refused == nil && p.testbed.Now() < end; {
		p.testbed.Run(p.testbed.Now()+pollInterval, nil)
		if err := p.poll(); err != nil {
			return 0, err
		}
	}
	if p.bound < want && p.refused == nil {
		p.refused = fmt.Errorf("a bind does not complete")
	}
	return key, p.refused
}
