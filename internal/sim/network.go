package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
	"softroce/wire/fault"
)

// drawNetwork draws the cables and engines, and the size of what they carry.
func (p *Profile) drawNetwork(r *rand.Rand) {
	p.Engines = r.IntN(3) == 0
	if r.IntN(4) == 0 {
		p.Stalls = 1 + r.IntN(3)
	}
	if r.IntN(3) == 0 {
		p.Rate, p.Buffer = []float64{1, 2.5, 10}[r.IntN(3)], time.Duration(1+r.IntN(200_000))
	}
	if r.IntN(6) == 0 {
		p.LongReads = 1 + r.IntN(3)
		p.Pairs, p.XRC = min(p.Pairs, 2), min(p.XRC, 2)
	}
	if r.IntN(24) == 0 { // many queue pairs
		p.Pairs, p.PerQueue, p.MaxMessage, p.LongReads = 32+r.IntN(97), 4, min(p.MaxMessage, 1024), 0
	}
	if r.IntN(12) == 0 { // a network that only loses packets, and not many
		*p = p.onlyLossy([][]ib.WROpcode{reads, writes}[r.IntN(2)])
	}
}

// onlyLossy returns p with loss of 1 %, and nothing else that causes retransmission. What is queued
// when a packet is lost is sent needlessly: few packets fit into the buffers, READs do not wait
// behind responses of their own NIC, and there are no WRITEs behind them, which would be repeated
// too.
func (p Profile) onlyLossy(operations []ib.WROpcode) Profile {
	p = p.withoutFaults().withoutFailures()
	p.Loss, p.Errors, p.LateRecv = 0.01, 0, 0
	p.Rate, p.Buffer = 10, 2*time.Microsecond
	p.Operations, p.OneWay, p.Windows, p.MTU = operations, true, false, 4096
	p.Pairs, p.XRC, p.LongReads, p.Source = 1, min(p.XRC, 1), 3, 1<<20
	return p
}

// withoutFaults returns p with a perfect network.
func (p Profile) withoutFaults() Profile {
	p.Loss, p.Duplicate, p.Reorder, p.Corrupt, p.Delay = 0, 0, 0, 0, 0
	p.Switches = p.Switches.withoutDrops()
	return p
}

// withoutFailures returns p without what puts queue pairs into error.
func (p Profile) withoutFailures() Profile {
	p.RetryCount, p.RNRRetry, p.RecvPause, p.Disruptions, p.SmallCQ, p.Stalls, p.Blocks = 7, 7, 0, 0, false, 0, nil
	p.Switches = p.Switches.withoutFailures()
	return p
}

// timeout draws a timeout code. On a cable with a rate, or in switches, what is queued in front of
// a packet must not take longer than the timeout.
func (sim *simulation) timeout() uint8 {
	code := uint8(8 + sim.rnd.IntN(6)) // 1 to 34 ms
	if sim.profile.Rate > 0 || sim.network != nil {
		code += 6
	}
	return code
}

// buildNetwork creates the engines and the NICs, each with a cable, a fault program and a verbs
// program.
func (sim *simulation) buildNetwork(seed uint64) error {
	sim.fabric = wire.NewFabric()
	if sim.profile.Switches != nil {
		if err := sim.buildSwitches(seed); err != nil {
			return err
		}
		sim.fabric = wire.NewFabricOf(sim.network)
	}
	for i := range sim.profile.NICs {
		for range max(sim.profile.Slices, 1) {
			if i > 0 && !sim.profile.Engines {
				break
			}
			e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: seed + 1 + uint64(len(sim.engines)), ReadArena: 1 << 20, Blocker: sim.blocker()})
			if err != nil {
				return err
			}
			sim.engines = append(sim.engines, e)
		}
		if i == 0 && sim.profile.Slices > 1 {
			nic.NewGroup(sim.engines...)
		}
		engine := sim.engines[len(sim.engines)-1]
		if sim.profile.Slices > 1 {
			engine = sim.engines[0]
		}
		addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24)
		mac := [6]byte{2, 0, 0, 0, 0, byte(i + 1)}
		port := sim.fabric.NewLink(engine, addr.Addr())
		var faults *wire.FaultLink
		var ports []*hashingLink
		for _, port := range sim.split(port) {
			var link wire.Link = &hashingLink{Link: port, sim: sim, sent: true}
			if faults == nil {
				faults = wire.NewFaultLink(link, sim.faults(seed+uint64(i)))
				link = faults
			} else {
				link = faults.Share(link)
			}
			if sim.profile.Rate > 0 {
				link = &cable{Link: link, perByte: 8 / sim.profile.Rate, buffer: int64(sim.profile.Buffer)}
			}
			if i == 0 && sim.profile.Tap != nil {
				link = wire.NewCaptureLink(link, sim.profile.Tap, wire.CaptureOptions{
					MAC: func() [6]byte { return mac }, Wall: func(now int64) int64 { return now },
				})
			}
			ports = append(ports, &hashingLink{Link: link, sim: sim})
		}
		sim.ports = append(sim.ports, ports)
		c := nic.DeviceConfig{Name: nicName(i), Link: ports[0], Iface: wire.StaticInterface("sim", mac, 9000, addr)}
		for k, p := range ports[1:] {
			c.Slices = append(c.Slices, nic.Slice{Engine: sim.engines[1+k], Link: p})
		}
		if s := sim.profile.Switches; s != nil {
			var err error
			if c.Rate, err = port.Plug(c.Name); err != nil {
				return err
			}
			c.Congestion = &s.Congestion
		}
		d, err := engine.AddDevice(c)
		if err != nil {
			return err
		}
		g, err := sim.newProgram(d)
		if err != nil {
			return err
		}
		sim.programs = append(sim.programs, g)
	}
	return nil
}

// split returns the links of a NIC, one for each of its engines.
func (sim *simulation) split(port *wire.FabricLink) []*wire.FabricLink {
	if sim.profile.Slices <= 1 {
		return []*wire.FabricLink{port}
	}
	var others []any
	for _, e := range sim.engines[1:] {
		others = append(others, e)
	}
	return port.Split(others...)
}

func nicName(i int) string { return fmt.Sprint("sim", i) }

func (sim *simulation) closeEngines() {
	for _, e := range sim.engines {
		e.Close()
	}
}

func (sim *simulation) faults(seed uint64) *fault.Program {
	p := &fault.Program{Seed: seed}
	add := func(chance float64, r fault.Rule) {
		if chance > 0 {
			r.Chance = chance
			p.Rules = append(p.Rules, r)
		}
	}
	add(sim.profile.Loss, fault.Rule{Action: fault.Drop})
	add(sim.profile.Corrupt, fault.Rule{Action: fault.Corrupt})
	add(sim.profile.Duplicate, fault.Rule{Action: fault.Duplicate})
	add(sim.profile.Reorder, fault.Rule{Action: fault.Reorder, By: 1 + sim.rnd.IntN(5), Within: 100 * time.Microsecond})
	add(sim.profile.Delay, fault.Rule{Action: fault.Delay, Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond})
	add(sim.profile.Delay, fault.Rule{Action: fault.Mark})
	return p
}

// A cable has a rate and, before it, a send buffer that fills.
type cable struct {
	wire.Link
	perByte float64 // ns
	buffer  int64   // ns

	idleAt  int64 // when everything accepted has left
	refused bool  // the last Send did not accept everything
}

func (c *cable) Send(now int64, batch []wire.TxFrame) (n int, err error) {
	for c.refused = false; n < len(batch); n++ {
		if c.refused = c.idleAt > now+c.buffer; c.refused {
			break
		}
		if k, err := c.Link.Send(now, batch[n:n+1]); k == 0 || err != nil {
			return n, err
		}
		c.idleAt = max(c.idleAt, now) + int64(c.perByte*float64(batch[n].Len+frameOverhead))
	}
	return n, nil
}

// frameOverhead is the size of what surrounds a RoCE packet on Ethernet, in bytes: preamble,
// Ethernet, IPv4 and UDP headers, FCS and gap.
const frameOverhead = 8 + 14 + 20 + 8 + 4 + 12

func (c *cable) Receive(now int64, batch []wire.RxFrame) (int, error) {
	if now >= c.idleAt-c.buffer {
		c.refused = false // what was refused may have been discarded since
	}
	return c.Link.Receive(now, batch)
}

func (c *cable) NextDeadline() int64 {
	next := c.Link.NextDeadline()
	if at := c.idleAt - c.buffer; c.refused && (next == 0 || at < next) {
		next = at
	}
	return next
}

func (c *cable) KeepReceived() { wire.KeepReceived(c.Link) }

func (c *cable) Join(g netip.Addr) error { return wire.Join(c.Link, g) }
func (c *cable) Leave(g netip.Addr)      { wire.Leave(c.Link, g) }

// A hashingLink adds the frames that the fabric accepts to the run's hash, and counts received
// frames.
type hashingLink struct {
	wire.Link
	sim    *simulation
	sent   bool
	got    uint64 // received frames, except intact multicast frames
	groups uint64 // intact multicast frames
	data   int    // accepted packets of RC and XRC with data, or an atomic's result
}

func (l *hashingLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	if l.sent && now < l.sim.linkDownUntil {
		return len(batch), nil
	}
	n, err := l.Link.Send(now, batch)
	if l.sent {
		for i := range batch[:n] {
			l.sim.hashWords(uint64(now), uint64(batch[i].Len))
			l.sim.hash.Write(batch[i].Head[:batch[i].HeadLen])
		}
		l.sim.frames += uint64(n)
	}
	for i := range batch[:n] {
		switch op := packet.Opcode(batch[i].Head[0]); op.Info().Kind {
		case packet.KindSend, packet.KindWrite, packet.KindReadResponse, packet.KindAtomicAck:
			if s := op.Service(); s == packet.RC || s == packet.XRC {
				l.data++
			}
		}
	}
	return n, err
}

func (l *hashingLink) Paused() uint8 { return wire.Paused(l.Link) }

func (l *hashingLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for i := range batch[:n] {
		if !batch[i].Dst.IsMulticast() || batch[i].BadICRC {
			l.got++
		} else {
			l.groups++
		}
	}
	return n, err
}

func (l *hashingLink) KeepReceived() { wire.KeepReceived(l.Link) }

func (l *hashingLink) Join(g netip.Addr) error { return wire.Join(l.Link, g) }
func (l *hashingLink) Leave(g netip.Addr)      { wire.Leave(l.Link, g) }

// A stall is a time in which one engine is not stepped: its process is stopped, or the machine is
// busy. All stalls of a run are of the same engine.
type stall struct {
	engine int
	until  int64
	ever   bool
}

func (sim *simulation) stall() {
	s := &sim.stalled
	if !s.ever {
		s.engine, s.ever = sim.rnd.IntN(len(sim.engines)), true
	}
	s.until = sim.now + 1e6 + sim.rnd.Int64N(100e6)
}

// tick returns the longest time between two steps. On a slow cable that is the time of a packet.
func (sim *simulation) tick() int {
	const ns = 2000
	if sim.profile.Rate == 0 {
		return ns
	}
	return max(ns, int(4096*8/sim.profile.Rate))
}

// order returns the order in which the engines are stepped. If several drive a NIC it is random.
// While there is work, some of those are stepped several times, and others, which do not get their
// processors, not at all.
func (sim *simulation) order() (l []int, all bool) {
	n := len(sim.engines)
	if sim.profile.Slices > 1 && !sim.working {
		return sim.rnd.Perm(n), true
	}
	all = sim.profile.Slices <= 1
	for i := range n {
		if !all {
			i = sim.rnd.IntN(n)
		}
		l = append(l, i)
	}
	return l, all
}

// step steps the engines that are not stalled.
func (sim *simulation) step() (next int64, busy bool) {
	before := sim.frames
	order, all := sim.order()
	for _, i := range order {
		e := sim.engines[i]
		at := sim.stalled.until
		if i != sim.stalled.engine || sim.now >= at {
			var b bool
			at, b = e.StepBlocked(sim.now)
			busy = busy || b
		}
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	sim.working = busy || sim.frames != before // frames may have reached an engine that was stepped before
	return next, sim.working || !all
}
