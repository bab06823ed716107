package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
	"softroce/wire/fault"
)

// A simulated testbed has stepped NICs on a fabric, under virtual time. Its peer, the script, is a
// port of the fabric.
type simulated struct {
	engine   *nic.Engine
	fabric   *wire.Fabric
	now      int64 // starts at 1
	nics     []*simNIC
	faults   []*faultPoint
	injector *wire.InjectorLink // of the NIC under test
	iface    *simInterface
	peer     *wire.FabricLink
	tap      wire.FrameSink
	o        SimulatedOptions
}

// SimulatedOptions are the options of a simulated testbed.
type SimulatedOptions struct {
	IPv6 bool // use IPv6 addresses

	// Foreign makes the NICs access all memory of their programs as that of another process.
	Foreign bool
}

// The stations of a simulation: the NIC under test is the first, the peer the last.
const (
	simNICs = 2
	simPeer = simNICs + 1
)

// simAddr4 and simAddr6 return the addresses of the n-th station, from the ranges for documentation
// (RFC 5737, RFC 3849).
func simAddr4(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 24)
}

func simAddr6(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(n)}), 64)
}

// simMTU is large enough for path MTU 4096.
const simMTU = 9000

// simVLAN is a VLAN in which simulated NICs have their address too.
const simVLAN = 7

// NewSimulated returns a Testbed with softroce's NICs in a simulation, under virtual time. tap
// receives the frames on the link of the NIC under test.
func NewSimulated(tap wire.FrameSink) (Testbed, error) { return newSimulated(tap, SimulatedOptions{}) }

// NewTestbed is NewSimulated with options.
func (o SimulatedOptions) NewTestbed(tap wire.FrameSink) (Testbed, error) {
	return newSimulated(tap, o)
}

// newSimulated implements NewSimulated and NewTestbed.
func newSimulated(tap wire.FrameSink, o SimulatedOptions) (*simulated, error) {
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 1, ReadArena: 1 << 20})
	if err != nil {
		return nil, err
	}
	s := &simulated{engine: e, fabric: wire.NewFabric(), now: 1, tap: tap, o: o}
	s.peer = s.fabric.NewLink(nil)
	s.peer.SetStations(wire.Station{Addr: s.Peer()}, wire.Station{Addr: s.Peer(), VLAN: simVLAN})
	return s, nil
}

// NIC implements Testbed.
func (s *simulated) NIC(second bool) (NIC, error) {
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

// addNIC adds the i-th NIC. The link of the first, the NIC under test, is instrumented.
func (s *simulated) addNIC(i int) (*simNIC, error) {
	v4, v6, addr := simAddr4(i+1), simAddr6(i+1), s.address(i+1)
	mac := [6]byte{2, 0, 0, 0, 0, byte(i + 1)}
	iface := &simInterface{up: true, Trunk: wire.StaticTrunk("sim", mac, simMTU, []wire.VLANAddress{{Prefix: addr, VLAN: simVLAN, Netdev: "sim.vlan"}}, v4, v6)}
	port := s.fabric.NewLink(s.engine)
	port.Follow(iface)
	var link wire.Link = port
	if i == 0 {
		var err error
		if link, err = s.instrument(link, iface); err != nil {
			return nil, err
		}
	}
	d, err := s.engine.AddDevice(nic.DeviceConfig{Name: fmt.Sprint("softroce", i), Link: link, Iface: iface, PKeys: simPKeys})
	if err != nil {
		return nil, err
	}
	n, err := newSimNIC(d, addr.Addr(), []uint64{firstVA, secondVA}[i])
	if err != nil {
		return nil, err
	}
	n.foreign = s.o.Foreign
	return n, nil
}

// address returns the address that the n-th station uses.
func (s *simulated) address(n int) netip.Prefix {
	if s.o.IPv6 {
		return simAddr6(n)
	}
	return simAddr4(n)
}

// instrument wraps the link of the NIC under test with a capture, an injector and a point for
// faults.
func (s *simulated) instrument(link wire.Link, iface *simInterface) (_ wire.Link, err error) {
	s.iface = iface
	link = wire.NewCaptureLink(link, s.tap, wire.CaptureOptions{MAC: iface.MAC, Wall: captureTime})
	if s.injector, err = wire.NewInjectorLink(link, iface); err != nil {
		return nil, err
	}
	p := &faultPoint{Link: s.injector}
	s.faults = append(s.faults, p)
	return p, nil
}

// simPKeys is the P_Key table of simulated NICs: the default partition, and one each with full and
// limited membership.
var simPKeys = []uint16{packet.DefaultPKey, 0x8001, 0x0002}

// A simInterface is a network interface whose state and addresses the script can change.
type simInterface struct {
	wire.Trunk
	up         bool
	extraAddrs []netip.Prefix // in addition to the fixed ones
	changed    []func()
}

// Addresses implements wire.Interface.
func (p *simInterface) Addresses() []netip.Prefix {
	return slices.Concat(p.Trunk.Addresses(), p.extraAddrs)
}

func (p *simInterface) notify() {
	for _, f := range p.changed {
		f()
	}
}

// Up implements wire.Interface.
func (p *simInterface) Up() bool { return p.up }

// OnChange implements wire.Interface.
func (p *simInterface) OnChange(f func()) { p.changed = append(p.changed, f) }

// SetPort implements Port.
func (s *simulated) SetPort(up bool) {
	s.iface.up = up
	s.iface.notify()
}

// SetAddress implements Port.
func (s *simulated) SetAddress(a netip.Addr, add bool) {
	p := netip.PrefixFrom(a, a.BitLen())
	s.iface.extraAddrs = slices.DeleteFunc(slices.Clone(s.iface.extraAddrs), func(q netip.Prefix) bool { return q == p })
	if add {
		s.iface.extraAddrs = append(s.iface.extraAddrs, p)
	}
	s.iface.notify()
}

// captureTime returns the timestamp of a captured frame, which starts at 0.
func captureTime(now int64) int64 { return now - 1 }

// A faultPoint allows fault rules to be added to a link in use.
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

// Join implements Network. The capture is at the NIC under test and sees all packets that it sends.
func (s *simulated) Join(netip.Addr) error { return nil }

// Fault implements Network. Each rule is a separate fault.Link, so that it counts packets from the
// moment it is added.
func (s *simulated) Fault(rule string) error {
	p, err := fault.Parse(strings.NewReader(rule))
	if err != nil {
		return err
	}
	if len(p.Verbs)+len(p.Completions) > 0 {
		return errors.New("rules for verbs, completions and accesses have no effect in a simulation")
	}
	if slices.ContainsFunc(p.Rules, func(r fault.Rule) bool { return len(r.Clients) > 0 }) {
		return errors.New("a simulation has no clients: name queue pairs with qp")
	}
	for _, f := range s.faults {
		f.Link = wire.NewFaultLink(f.Link, p)
	}
	return nil
}

// Now implements Network.
func (s *simulated) Now() time.Duration { return time.Duration(s.now - 1) }

// Peer implements Network.
func (s *simulated) Peer() netip.Addr { return s.address(simPeer).Addr() }

// PeerQPN implements Network.
func (s *simulated) PeerQPN() uint32 { return firstPeerQPN }

// Path implements Network.
func (s *simulated) Path(to netip.Addr) (*wire.Path, error) {
	p := &wire.Path{Src: s.Peer(), Dst: to}
	if s.iface == nil {
		return p, nil
	}
	if err := s.iface.Resolve(context.Background(), p); err != nil {
		return nil, err
	}
	if !to.IsMulticast() { // deliver to the NIC under test whatever the destination
		p.DstMAC = s.iface.MAC()
	}
	return p, nil
}

// Send implements Network.
func (s *simulated) Send(f *wire.TxFrame) error {
	n, err := s.peer.Send(s.now, []wire.TxFrame{*f})
	if err == nil && n == 0 {
		err = errors.New("the NIC's port is full")
	}
	return err
}

// Frames implements Network.
func (s *simulated) Frames() error { return nil }

// SendFrame implements Network.
func (s *simulated) SendFrame(way wire.InjectAs, frame []byte) error {
	if err := s.tap.WriteFrame(captureTime(s.now), 0, frame); err != nil {
		return err
	}
	s.injector.Inject(way, frame)
	return nil
}

// maxSteps bounds the engine steps at one moment: an engine that never becomes idle is broken.
const maxSteps = 100_000

// Settle implements Network.
func (s *simulated) Settle(done func() bool) bool {
	s.step()
	return done != nil && done()
}

// Slack implements Network. Virtual time is exact.
func (s *simulated) Slack() (early, late time.Duration) { return 0, 0 }

// step steps the engine until it is idle at this moment, and returns the next deadline.
func (s *simulated) step() (next int64) {
	for range maxSteps {
		next, busy := s.engine.Step(s.now)
		s.drain()
		if !busy && (next == 0 || next > s.now) {
			return next
		}
	}
	panic("testbed: the engine does not become idle")
}

// drain discards the frames received by the peer: the capture has already seen them.
func (s *simulated) drain() {
	var batch [32]wire.RxFrame
	for {
		if n, err := s.peer.Receive(s.now, batch[:]); n == 0 || err != nil {
			return
		}
	}
}

// Run implements Network.
func (s *simulated) Run(until time.Duration, done func() bool) bool {
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

var _ Port = (*simulated)(nil)

// Close implements Testbed.
func (s *simulated) Close() error {
	err := s.engine.Close()
	for _, n := range s.nics {
		err = errors.Join(err, n.close())
	}
	return err
}
