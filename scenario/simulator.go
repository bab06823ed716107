package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"softroce/nic"
	"softroce/wire"
)

// A simulator is a Bench of stepped NICs on a fabric, under virtual time. The peer that the script plays is
// a port of the fabric.
type simulator struct {
	engine *nic.Engine
	fabric *wire.Fabric
	now    int64 // starts at 1
	nics   []*simNIC
	faults []*faultPoint
	inlet  *wire.Inlet // of the NIC under test
	iface  wire.Interface
	peer   *wire.FabricPort
	tap    wire.FrameSink
}

// Addresses of a simulation: the NIC under test has the first, the peer the last.
var simAddrs = [...]netip.Addr{
	netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.AddrFrom4([4]byte{192, 0, 2, 2}), netip.AddrFrom4([4]byte{192, 0, 2, 3}),
}

// simMTU leaves room for path MTU 4096.
const simMTU = 9000

// simVLAN is where a simulated NIC has its address once more.
const simVLAN = 7

// Simulator returns a Bench whose NICs are softroce's in a simulation, under virtual time. tap sees what is on
// the cable of the NIC under test.
func Simulator(tap wire.FrameSink) (Bench, error) { return newSimulator(tap) }

// newSimulator returns a bench whose cable at the NIC under test is watched by tap.
func newSimulator(tap wire.FrameSink) (*simulator, error) {
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 1, ReadArena: 1 << 20})
	if err != nil {
		return nil, err
	}
	s := &simulator{engine: e, fabric: wire.NewFabric(), now: 1, tap: tap}
	s.peer = s.fabric.Port(nil)
	s.peer.SetStations(wire.Station{Addr: s.Peer()}, wire.Station{Addr: s.Peer(), VLAN: simVLAN})
	return s, nil
}

// NIC implements Bench.
func (s *simulator) NIC(second bool) (NIC, error) {
	want := 1
	if second {
		want = 2
	}
	for len(s.nics) < want {
		n, err := s.addNIC(len(s.nics))
		if err != nil {
			return nil, err
		}
		s.nics = append(s.nics, n)
	}
	return s.nics[want-1], nil
}

// addNIC adds the i-th NIC. That under test, the first, is watched.
func (s *simulator) addNIC(i int) (*simNIC, error) {
	addr := netip.PrefixFrom(simAddrs[i], 24)
	mac := [6]byte{2, 0, 0, 0, 0, byte(i + 1)}
	iface := wire.StaticTrunk("sim", mac, simMTU, []wire.VLANAddress{{Prefix: addr, VLAN: simVLAN, Netdev: "sim.vlan"}}, addr)
	port := s.fabric.Port(s.engine)
	port.Follow(iface)
	var link wire.Link = port
	if i == 0 {
		var err error
		if link, err = s.watch(link, iface); err != nil {
			return nil, err
		}
	}
	d, err := s.engine.AddDevice(nic.DeviceConfig{Name: fmt.Sprint("softroce", i), Link: link, Iface: iface})
	if err != nil {
		return nil, err
	}
	return newSimNIC(d, addr.Addr(), []uint64{firstVA, secondVA}[i])
}

// watch puts around the link of the NIC under test what shows its cable and lets the script at it.
func (s *simulator) watch(link wire.Link, iface wire.Interface) (_ wire.Link, err error) {
	s.iface = iface
	link = wire.NewCapture(link, s.tap, wire.CaptureOptions{MAC: iface.MAC, Wall: cableTime})
	if s.inlet, err = wire.NewInlet(link, iface); err != nil {
		return nil, err
	}
	p := &faultPoint{Link: s.inlet}
	s.faults = append(s.faults, p)
	return p, nil
}

// cableTime is the time that frames are shown with, which begins with 0.
func cableTime(now int64) int64 { return now - 1 }

// A faultPoint is where fault rules are put into a link that is in use.
type faultPoint struct{ wire.Link }

// Counters implements wire.Counted.
func (p *faultPoint) Counters() *wire.LinkCounters {
	if c, ok := p.Link.(wire.Counted); ok {
		return c.Counters()
	}
	return new(wire.LinkCounters)
}

// Join implements wire.Multicaster.
func (p *faultPoint) Join(group netip.Addr) error { return wire.Join(p.Link, group) }

// Leave implements wire.Multicaster.
func (p *faultPoint) Leave(group netip.Addr) { wire.Leave(p.Link, group) }

// Join implements Network: what leaves the NIC under test is seen at the NIC.
func (s *simulator) Join(netip.Addr) error { return nil }

// Fault implements Network. Each rule is a Fault of its own, so that it counts packets from
// the moment it was stated.
func (s *simulator) Fault(rule string) error {
	p, err := wire.ParseFaults(strings.NewReader(rule))
	if err != nil {
		return err
	}
	for _, f := range s.faults {
		f.Link = wire.NewFault(f.Link, p)
	}
	return nil
}

// Now implements Network.
func (s *simulator) Now() time.Duration { return time.Duration(s.now - 1) }

// Peer implements Network.
func (s *simulator) Peer() netip.Addr { return simAddrs[len(simAddrs)-1] }

// PeerQPN implements Network.
func (s *simulator) PeerQPN() uint32 { return firstHandQPN }

// Path implements Network.
func (s *simulator) Path(to netip.Addr) (*wire.Path, error) {
	p := &wire.Path{Src: s.Peer(), Dst: to}
	if s.iface == nil {
		return p, nil
	}
	if err := s.iface.Resolve(context.Background(), p); err != nil {
		return nil, err
	}
	if !to.IsMulticast() { // whomever it is for, it comes to the NIC under test
		p.DstMAC = s.iface.MAC()
	}
	return p, nil
}

// Send implements Network.
func (s *simulator) Send(f *wire.TxFrame) error {
	n, err := s.peer.Send(s.now, []wire.TxFrame{*f})
	if err == nil && n == 0 {
		err = errors.New("the NIC's port is full")
	}
	return err
}

// SendFrame implements Network.
func (s *simulator) SendFrame(way wire.InletWay, frame []byte) error {
	if err := s.tap.WriteFrame(cableTime(s.now), 0, frame); err != nil {
		return err
	}
	s.inlet.Put(way, frame)
	return nil
}

// maxSteps bounds the rounds at one moment: an engine that finds no rest is broken.
const maxSteps = 100_000

// Settle implements Network.
func (s *simulator) Settle(done func() bool) bool {
	s.step()
	return done != nil && done()
}

// Slack implements Network: there is none.
func (s *simulator) Slack() (early, late time.Duration) { return 0, 0 }

// step steps until nothing more happens at this moment, and returns the next deadline.
func (s *simulator) step() (next int64) {
	for range maxSteps {
		next, busy := s.engine.Step(s.now)
		s.drain()
		if !busy && (next == 0 || next > s.now) {
			return next
		}
	}
	panic("scenario: the engine finds no rest")
}

// drain takes what has come to the peer, who has seen it on the cable already.
func (s *simulator) drain() {
	var batch [32]wire.RxFrame
	for {
		if n, err := s.peer.Receive(s.now, batch[:]); n == 0 || err != nil {
			return
		}
	}
}

// Run implements Network.
func (s *simulator) Run(until time.Duration, done func() bool) bool {
	for {
		next := s.step()
		end := int64(until) + 1
		switch {
		case done != nil && done():
			return true
		case s.now >= end:
			return false
		case next != 0 && next <= end:
			s.now = next
		default:
			s.now = end
		}
	}
}

// Close implements Bench.
func (s *simulator) Close() error { return s.engine.Close() }
