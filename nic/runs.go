package nic

import (
	"softroce/packet"
	"softroce/wire"
)

// The transport sends and receives consecutive packets of a message together, as a run
// (packet.Run), which costs little more than one of them. A fabric passes a run as one frame. Other
// links are given single packets. What they receive are single packets, too, also those of a
// super-packet: here they become a run.

// run returns how many full packets before the last one of q's turn may be one run.
func (d *Device) run(q *QP) int {
	t := &d.tx
	if !d.carriesRuns(q.route()) {
		return 0
	}
	t.finish()
	mtu := q.t.PathMTU()
	before := t.left - packetCost(mtu)
	if before <= 0 {
		return 0
	}
	cost := max(packet.BTHLen+packet.RETHLen+mtu, frameCost)
	return min((before+cost-1)/cost, t.free()-1)
}

// runsOn is whether the link carries runs with a path, as of a step.
type runsOn struct {
	path *wire.Path
	step int64 // its time
	are  bool
}

// carriesRuns reports whether the link carries runs with a path, which it is asked once in a step:
// the answer is the same for the packets of many messages.
func (d *Device) carriesRuns(path *wire.Path) bool {
	r := &d.tx.runsOn
	if path != r.path || d.engine.now != r.step {
		*r = runsOn{path, d.engine.now, path != nil && wire.CarriesRuns(d.link, path)}
	}
	return r.are
}

// joined returns the run that the packets at the front of frames form: one packet, if no others
// continue it. A run that the link passed as a frame is joined with nothing.
func joined(frames []wire.RxFrame) (run packet.Run) {
	f, payload := &frames[0], 0
	for i := 1; i < len(frames); i++ {
		g, longer := &frames[i], run
		if !longer.Extend(f.Head, g.Head) {
			break
		}
		if i == 1 {
			payload = f.Len() - packet.Opcode(f.Head[0]).Info().HeaderLen
		}
		if g.Len()-packet.BTHLen != payload || !alike(f, g) {
			break
		}
		run = longer
	}
	return run
}

// alike reports whether two frames have the same addresses and the same IP and VLAN fields as far
// as a NIC looks at them, and both are single packets with a correct ICRC.
func alike(f, g *wire.RxFrame) bool {
	return f.Network == g.Network && f.Src == g.Src && f.Dst == g.Dst && f.TClass == g.TClass &&
		f.Tagged == g.Tagged && f.TCI == g.TCI && f.Run.Repeat == 0 && g.Run.Repeat == 0 && !f.BadICRC && !g.BadICRC
}

// takeRun gives a run to its queue pair as a whole, if nothing about it is unusual, and reports
// whether it did. f has its first packet, and rest the others, or f has all of them.
func (d *Device) takeRun(f *wire.RxFrame, rest []wire.RxFrame, run packet.Run) bool {
	if _, ok := d.parse(f); !ok || f.CE() || f.Dst.IsMulticast() {
		return false
	}
	q, _ := d.lookUpQP(f)
	if q == nil || q.held() || q.congestion.notification.Pending() {
		return false
	}
	p := &d.buffers.pkt
	p.Run = run
	for i := range rest {
		d.buffers.addPayload(&rest[i], packet.BTHLen)
	}
	if !q.t.ReceiveRun(d.env(q), p) {
		return false
	}
	_, last := run.Opcodes(p.Opcode)
	d.received(q, last)
	return true
}

// receiveRun receives a run that the link passed as one frame, and returns its cost.
func (d *Device) receiveRun(f *wire.RxFrame, g *packet.GRH) int {
	if !d.takeRun(f, nil, f.Run) {
		for k := range f.Run.Packets() {
			one := d.buffers.part.Packet(f, k)
			d.receiveNoted(&one, g)
		}
	}
	return max(len(f.Tail[0]), f.Run.Packets()*frameCost)
}
