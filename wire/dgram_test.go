package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"softroce/packet"
)

var (
	vmMAC  = [6]byte{0x52, 0x54, 0, 0, 0, 1}
	vmAddr = netip.MustParseAddr("10.77.0.11")
	vm6    = netip.MustParseAddr("fd77::11")
	dgMAC  = [6]byte{0x52, 0x54, 0, 0, 0, 2}
	dgAddr = netip.MustParseAddr("10.77.0.12")
	dg6    = netip.MustParseAddr("fd77::12")

	dgConfig = DgramConfig{
		Name: "dg0", MAC: dgMAC, MTU: 9000,
		Local: netip.MustParseAddrPort("127.0.0.1:1"), Remote: netip.MustParseAddrPort("127.0.0.1:2"),
		Addrs: []netip.Prefix{netip.PrefixFrom(dgAddr, 24), netip.PrefixFrom(dg6, 64)},
	}
)

// input receives a frame as the socket delivers it, and reports whether it is a packet for the NIC.
func (l *DgramLink) input(b []byte, rx *RxFrame) bool {
	d, ok := l.load(rxMessage{data: b})
	if !ok {
		l.counters.Drops[d]++
		return false
	}
	if ok = l.next(rx); ok {
		l.counters.addRx(rx)
	}
	return ok
}

func newUnconnectedDgram(t testing.TB) *DgramLink {
	t.Helper()
	l, err := newDgram(dgConfig)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// roceFrame returns a frame from the VM to the link.
func roceFrame(v6 bool) []byte {
	a := packet.Addressing{SrcMAC: vmMAC, DstMAC: dgMAC, Src: vmAddr, Dst: dgAddr, SrcPort: 0xc000, HopLimit: 64, ID: 77, TClass: 2}
	if v6 {
		a.Src, a.Dst, a.ID, a.FlowLabel = vm6, dg6, 0, 5
	}
	f := frame(aToB, 9, []byte("payload"))
	return packet.AppendFrame(nil, &a, &f.Tx)
}

// changed returns b with bytes at an offset replaced.
func changed(b []byte, at int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], with)
	return b
}

// fixIP corrects the IPv4 header checksum of a frame.
func fixIP(b []byte) []byte {
	putChecksum(b[24:], b[14:34], 0)
	return b
}

// checksummed sets the UDP checksum of a frame to the correct one plus off.
func checksummed(b []byte, off uint16) []byte {
	b = bytes.Clone(b)
	var f packet.Frame
	if err := packet.ParseFrame(b, &f); err != nil {
		panic(err)
	}
	udp := f.IP[len(f.IP)-len(f.Transport)-8:]
	binary.BigEndian.PutUint16(udp[6:], ^onesComplementSum(udp, pseudoChecksum(&f.Addressing, len(f.Transport)))+off)
	return b
}

func TestDgramAcceptsRoCE(t *testing.T) {
	for name, b := range map[string][]byte{
		"IPv4":             roceFrame(false),
		"IPv6":             roceFrame(true),
		"UDP checksum":     checksummed(roceFrame(false), 0),
		"UDP checksum, v6": checksummed(roceFrame(true), 0),
		"padded":           append(roceFrame(false), make([]byte, 10)...),
		"broadcast MAC":    changed(roceFrame(false), 0, 255, 255, 255, 255, 255, 255),
		"other tos, ttl":   fixIP(changed(changed(roceFrame(false), 15, 3), 22, 1)),
		"no DF":            fixIP(changed(roceFrame(false), 20, 0)),
		"wrong ICRC":       changed(roceFrame(false), 42+12+8, 'x'),
		"FECN":             changed(roceFrame(true), 62+4, 0x80),
	} {
		l := newUnconnectedDgram(t)
		var rx RxFrame
		if !l.input(b, &rx) {
			t.Errorf("%s: dropped: %v", name, l.counters)
			continue
		}
		bad := name == "wrong ICRC" || name == "no DF" // the ICRC covers the flags
		if rx.BadICRC != bad || rx.MayFragment != (name == "no DF") || l.counters.RxPackets != 1 {
			t.Errorf("%s: received %+v", name, rx)
		}
		if h := bth(t, &rx); h.PSN != 9 || len(rx.Head) != 12+8 || rx.SrcMAC != vmMAC || rx.SrcPort != 0xc000 {
			t.Errorf("%s: received %+v", name, rx)
		}
	}
}

func TestDgramDropReasons(t *testing.T) {
	good, good6 := roceFrame(false), roceFrame(true)
	for _, c := range []struct {
		name  string
		frame []byte
		want  Drop
	}{
		{"empty", nil, DropTruncated},
		{"half an Ethernet header", good[:13], DropTruncated},
		{"half an IP header", good[:20], DropTruncated},
		{"half a packet", good[:60], DropTruncated},
		{"half an IPv6 packet", good6[:70], DropTruncated},
		{"other MAC", changed(good, 5, 99), DropMAC},
		{"other group", changed(good, 0, 1, 0, 0x5e), DropMAC},
		{"LLDP", changed(good, 12, 0x88, 0xcc), DropEtherType},
		{"IP version 5", changed(good, 14, 0x55), DropIPHeader},
		{"IP options", fixIP(changed(good, 14, 0x46)), DropIPHeader},
		{"IPv6 version 4", changed(good6, 14, 0x40), DropIPHeader},
		{"IP checksum", changed(good, 24, 1, 2), DropIPChecksum},
		{"other host", fixIP(changed(good, 33, 99)), DropIPAddress},
		{"other IPv6 host", changed(good6, 14+39, 99), DropIPAddress},
		{"fragment", fixIP(changed(good, 20, 0x20)), DropFragment},
		{"TCP", fixIP(changed(good, 23, 6)), DropIPProtocol},
		{"IPv6 hop-by-hop options", changed(good6, 20, 0), DropIPProtocol},
		{"DNS", changed(good, 36, 0, 53), DropUDPPort},
		{"UDP length", changed(good, 38, 0, 9), DropUDPLength},
		{"IP length", fixIP(changed(good, 16, 0, 30)), DropUDPLength},
		{"UDP checksum", checksummed(good, 1), DropUDPChecksum},
		{"IPv6 UDP checksum", checksummed(good6, 1), DropUDPChecksum},
		{"ARP cut", arpFrame(arpRequest, vmAddr, dgAddr)[:40], DropARP},
		{"ARP for another", arpFrame(arpRequest, vmAddr, addrA), DropARP},
		{"ARP operation", arpFrame(3, vmAddr, dgAddr), DropARP},
		{"ARP from the link's own address", arpFrame(arpRequest, dgAddr, dgAddr), DropARP},
		{"echo reply", echoFrame(icmpEchoReply), DropICMP},
		{"echo with a wrong checksum", changed(echoFrame(icmpEcho), 36, 9, 9), DropICMP},
		{"solicitation for another", solicitFrame(vm6, addr6), DropICMP},
		{"solicitation through a router", changed(solicitFrame(vm6, dg6), 14+7, 64), DropICMP},
		{"solicitation with a wrong checksum", changed(solicitFrame(vm6, dg6), 14+42, 9, 9), DropICMP},
	} {
		l := newUnconnectedDgram(t)
		var rx RxFrame
		if l.input(c.frame, &rx) {
			t.Errorf("%s: accepted", c.name)
		}
		for d, n := range l.counters.Drops {
			if (n == 1) != (Drop(d) == c.want) {
				t.Errorf("%s: counted %d times as %v, want %v", c.name, n, Drop(d), c.want)
			}
		}
		if l.handled != 0 || len(l.reply) != 0 {
			t.Errorf("%s: replied with %x", c.name, l.reply)
		}
	}
}

// asVM returns a link that makes frames as the VM sends them.
func asVM() *DgramLink {
	l := &DgramLink{c: dgConfig}
	l.stationMAC, l.c.MAC = vmMAC, vmMAC
	return l
}

func arpFrame(operation uint16, sender, target netip.Addr) []byte {
	return asVM().appendARP(nil, 0, operation, broadcast, sender, target, [6]byte{})
}

func solicitFrame(src, target netip.Addr) []byte {
	group := solicitedNode(target)
	mac := multicastMAC(group)
	if target != dg6 {
		mac, group = multicastMAC(allNodes), allNodes
	}
	return asVM().appendNeighbor(nil, 0, mac, src, group, neighborSolicitation, 0, target)
}

func echoFrame(kind byte) []byte {
	a := packet.Addressing{SrcMAC: vmMAC, DstMAC: dgMAC, Src: vmAddr, Dst: dgAddr, HopLimit: 9}
	b := make([]byte, 14+28)
	a.PutHeaders(b, 4)
	binary.BigEndian.PutUint16(b[16:], 20+12)
	b[23] = protocolICMP
	m := append([]byte{kind, 0, 0, 0, 0, 1, 0, 2}, "abcd"...)
	putChecksum(m[2:], m, 0)
	return append(fixIP(b)[:34], m...)
}

func TestDgramRepliesToARPAndICMP(t *testing.T) {
	vm := asVM()
	echo6 := vm.appendIPv6(nil, 0, dgMAC, vm6, dg6, 64, 8)
	m := []byte{icmp6Echo, 0, 0, 0, 0, 1, 0, 2}
	putChecksum(m[2:], m, pseudo6(vm6, dg6, 8))
	echo6 = append(echo6, m...)
	as := asVM()
	as.stationMAC = dgMAC
	wantEcho6 := as.appendIPv6(nil, 0, vmMAC, dg6, vm6, 64, 8)
	m6 := []byte{icmp6EchoReply, 0, 0, 0, 0, 1, 0, 2}
	putChecksum(m6[2:], m6, pseudo6(vm6, dg6, 8))
	wantEcho := changed(echoFrame(icmpEchoReply), 0, append(vmMAC[:], dgMAC[:]...)...)
	copy(wantEcho[26:], dgAddr.AsSlice())
	copy(wantEcho[30:], vmAddr.AsSlice())
	wantEcho[22] = 64
	unspecified := netip.IPv6Unspecified()
	probe := changed(solicitFrame(unspecified, dg6), 0)
	for _, c := range []struct {
		name        string
		frame, want []byte
	}{
		{"ARP", arpFrame(arpRequest, vmAddr, dgAddr), as.appendARP(nil, 0, arpReply, vmMAC, dgAddr, vmAddr, vmMAC)},
		{"solicitation", solicitFrame(vm6, dg6), as.appendNeighbor(nil, 0, vmMAC, dg6, vm6, neighborAdvertisement, 0x60, dg6)},
		{"duplicate address detection", probe, as.appendNeighbor(nil, 0, multicastMAC(allNodes), dg6, allNodes, neighborAdvertisement, 0x20, dg6)},
		{"ping", echoFrame(icmpEcho), fixIP(wantEcho)},
		{"ping6", echo6, append(wantEcho6, m6...)},
	} {
		l := newUnconnectedDgram(t)
		var rx RxFrame
		if l.input(c.frame, &rx) || l.handled != 1 {
			t.Errorf("%s: handled %d frames, drops %v", c.name, l.handled, l.counters.Drops)
		}
		if !bytes.Equal(l.reply, c.want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, l.reply, c.want)
		}
	}
}

// freePorts returns n unused UDP ports of 127.0.0.1.
func freePorts(t testing.TB, n int) (ports []netip.AddrPort) {
	for range n {
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ports = append(ports, c.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return ports
}

// newDgramPair returns two connected links.
func newDgramPair(t testing.TB) (vm, dg *DgramLink) {
	t.Helper()
	ports := freePorts(t, 2)
	c := dgConfig
	c.Local, c.Remote = ports[0], ports[1]
	dg, err := NewDgramLink(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Name, c.MAC, c.Local, c.Remote = "vm", vmMAC, ports[1], ports[0]
	c.Addrs = []netip.Prefix{netip.PrefixFrom(vmAddr, 24), netip.PrefixFrom(vm6, 64)}
	vm, err = NewDgramLink(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dg.Close(); vm.Close() })
	return vm, dg
}

// resolveOver resolves paths while both links receive.
func resolveOver(t testing.TB, links []*DgramLink, at *DgramLink, paths ...*Path) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	var wg sync.WaitGroup
	done := make(chan struct{})
	for _, l := range links {
		wg.Go(func() {
			var rx [4]RxFrame
			for {
				select {
				case <-done:
					return
				default:
					l.Receive(0, rx[:])
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	for _, p := range paths {
		err = errors.Join(err, at.Resolve(ctx, p))
	}
	close(done)
	wg.Wait()
	return err
}

func TestDgramCarriesPackets(t *testing.T) {
	vm, dg := newDgramPair(t)
	v4 := &Path{Src: dgAddr, Dst: vmAddr, SrcPort: 0xc111, HopLimit: 64, TClass: 2}
	v6 := &Path{Src: dg6, Dst: vm6, SrcPort: 0xc112, HopLimit: 63, FlowLabel: 0xabcde}
	ll := &Path{Src: linkLocal(dgMAC), Dst: linkLocal(vmMAC), SrcPort: 0xc113, HopLimit: 1}
	if err := resolveOver(t, []*DgramLink{vm, dg}, dg, v4, v6, ll); err != nil {
		t.Fatal(err)
	}
	if v4.DstMAC != vmMAC || v6.DstMAC != vmMAC || ll.DstMAC != vmMAC {
		t.Fatalf("resolved %x, %x and %x", v4.DstMAC, v6.DstMAC, ll.DstMAC)
	}
	var batch []TxFrame
	for i := range 300 {
		f := frame([]*Path{v4, v6, ll}[i%3], uint32(i), bytes.Repeat([]byte{byte(i)}, 13*i))
		f.CE = i%7 == 0
		if i == 150 {
			f.Flip = 12*8 + 1
		}
		batch = append(batch, f)
	}
	for at := 0; at < len(batch); {
		n, err := dg.Send(0, batch[at:])
		if err != nil {
			t.Fatal(err)
		}
		at += n
	}
	var got []RxFrame
	for end := time.Now().Add(waitTimeout); len(got) < len(batch) && time.Now().Before(end); {
		got = append(got, receive(t, vm, 0)...)
	}
	if len(got) != len(batch) {
		t.Fatalf("%d of %d arrived; %+v", len(got), len(batch), vm.Counters())
	}
	for i := range got {
		g, f := &got[i], &batch[i]
		same := bytes.Equal(g.Head, sentBytes(f))
		if same != (i != 150) || g.BadICRC != (i == 150) || g.CE() != f.CE || g.Src != f.Path.Src || g.SrcPort != f.Path.SrcPort ||
			g.HopLimit != f.Path.HopLimit || g.FlowLabel != f.Path.FlowLabel || g.SrcMAC != dgMAC {
			t.Fatalf("frame %d: %+v", i, g)
		}
		if f.Path == v4 && (g.ID != f.ID || g.ID != uint16(i)) || g.ICRC != f.ICRC && i != 150 {
			t.Fatalf("frame %d: ID %d, ICRC %x; sent %d, %x", i, g.ID, g.ICRC, f.ID, f.ICRC)
		}
	}
	if dg.Counters().TxPackets != 300 || vm.Counters().RxPackets != 300 {
		t.Errorf("counted %d and %d", dg.Counters().TxPackets, vm.Counters().RxPackets)
	}
}

func TestDgramResolves(t *testing.T) {
	vm, dg := newDgramPair(t)
	own := &Path{Src: dgAddr, Dst: dgAddr}
	group := &Path{Src: dgAddr, Dst: netip.MustParseAddr("224.1.2.3")}
	if err := resolveOver(t, nil, dg, own, group); err != nil || own.DstMAC != dgMAC || group.DstMAC != multicastMAC(group.Dst) {
		t.Errorf("resolved with %v: own MAC %x, group MAC %x", err, own.DstMAC, group.DstMAC)
	}
	if err := dg.Resolve(context.Background(), &Path{Src: dgAddr, Dst: addrA}); !errors.Is(err, ErrNoRoute) {
		t.Errorf("address off the link: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := dg.Resolve(ctx, &Path{Src: dgAddr, Dst: vmAddr}); !errors.Is(err, ErrUnreachable) || len(dg.neighbors.known) != 0 {
		t.Errorf("no reply: %v, %d entries", err, len(dg.neighbors.known))
	}
	// The VM learned the link's MAC from its solicitation.
	receive(t, vm, 0)
	back := &Path{Src: vmAddr, Dst: dgAddr}
	if err := vm.Resolve(context.Background(), back); err != nil || back.DstMAC != dgMAC {
		t.Errorf("resolved with %v: MAC %x", err, back.DstMAC)
	}
}

func TestDgramReportsNewNeighborMAC(t *testing.T) {
	l := newUnconnectedDgram(t)
	moved := make(chan [6]byte, 1)
	l.OnNeighbor(func(dst Station, mac [6]byte) {
		if dst.Addr == vmAddr {
			moved <- mac
		}
	})
	var rx RxFrame
	l.input(arpFrame(arpRequest, vmAddr, dgAddr), &rx)
	other := asVM()
	other.stationMAC = [6]byte{2, 2, 2, 2, 2, 2}
	l.input(other.appendARP(nil, 0, arpRequest, broadcast, vmAddr, vmAddr, [6]byte{}), &rx)
	select {
	case mac := <-moved:
		if mac != other.stationMAC {
			t.Errorf("OnNeighbor with MAC %x", mac)
		}
	case <-time.After(waitTimeout):
		t.Error("OnNeighbor was not called")
	}
}

func TestDgramProbesNeighbor(t *testing.T) {
	vm, dg := newDgramPair(t)
	p := &Path{Src: dgAddr, Dst: vmAddr}
	if err := resolveOver(t, []*DgramLink{vm, dg}, dg, p); err != nil {
		t.Fatal(err)
	}
	moved := make(chan [6]byte, 1)
	dg.OnNeighbor(func(_ Station, mac [6]byte) { moved <- mac })
	other := [6]byte{2, 2, 2, 2, 2, 2}
	vm.stationMAC, vm.c.MAC = other, other
	before := vm.handled
	dg.ProbeNeighbor(Station{Addr: vm6}) // was never resolved
	dg.ProbeNeighbor(Station{Addr: vmAddr})
	receive(t, vm, 0)
	receive(t, dg, 0)
	if n := vm.handled - before; n != 1 {
		t.Fatalf("the VM replied to %d solicitations, want 1", n)
	}
	select {
	case mac := <-moved:
		if mac != other {
			t.Errorf("OnNeighbor with MAC %x", mac)
		}
	case <-time.After(waitTimeout):
		t.Error("OnNeighbor was not called")
	}
}

func TestDgramNeighborCacheIsBounded(t *testing.T) {
	l := newUnconnectedDgram(t)
	for i := range 2 * maxNeighbors {
		a := Station{Addr: netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})}
		l.neighbors.learn(a, vmMAC, true)
		e := l.neighbors.addWaiter(a)
		l.neighbors.removeWaiter(e, a)
	}
	if n := len(l.neighbors.known); n > maxNeighbors {
		t.Errorf("%d entries", n)
	}
}

func TestDgramSendsWithoutAPeer(t *testing.T) {
	c := dgConfig
	ports := freePorts(t, 2)
	c.Local, c.Remote = ports[0], ports[1]
	l, err := NewDgramLink(c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := &Path{Src: dgAddr, Dst: vmAddr}
	for i := range 10 {
		mustSend(t, l, 0, frame(path, uint32(i), nil), frame(path, uint32(i), nil))
		receive(t, l, 0)
	}
	if _, err := NewDgramLink(c); err == nil {
		t.Error("two links opened one port")
	}
}

func TestDgramRejectsBadConfigurations(t *testing.T) {
	for name, f := range map[string]func(*DgramConfig){
		"families": func(c *DgramConfig) { c.Remote = netip.MustParseAddrPort("[::1]:5") },
		"port":     func(c *DgramConfig) { c.Remote = netip.MustParseAddrPort("127.0.0.1:0") },
		"MAC":      func(c *DgramConfig) { c.MAC = broadcast },
		"MTU":      func(c *DgramConfig) { c.MTU = 70000 },
		"IP":       func(c *DgramConfig) { c.Addrs = nil },
		"address":  func(c *DgramConfig) { c.Addrs = []netip.Prefix{{}} },
	} {
		c := dgConfig
		f(&c)
		if _, err := NewDgramLink(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDgramDoesNotAllocate(t *testing.T) {
	vm, dg := newDgramPair(t)
	path := &Path{Src: dgAddr, Dst: vmAddr, DstMAC: vmMAC}
	tx := []TxFrame{frame(path, 0, make([]byte, 1024)), frame(path, 0, nil), frame(path, 0, make([]byte, 4096))}
	var rx [8]RxFrame
	round := func() {
		dg.Send(0, tx)
		for got := 0; got < len(tx); {
			n, _ := vm.Receive(0, rx[:])
			got += n
		}
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDgramReceive(f *testing.F) {
	for _, b := range [][]byte{
		roceFrame(false), roceFrame(true), roceV1Frame(false), roceV1Frame(true), checksummed(roceFrame(false), 0), echoFrame(icmpEcho),
		arpFrame(arpRequest, vmAddr, dgAddr), arpFrame(arpReply, vmAddr, dgAddr),
		solicitFrame(vm6, dg6), solicitFrame(netip.IPv6Unspecified(), dg6),
		slices.Insert(roceFrame(false), 12, 0x81, 0, 0x20, 7),
		asVM().appendNeighbor(nil, 0, dgMAC, vm6, dg6, neighborAdvertisement, 0x60, vm6),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := newUnconnectedDgram(t)
		in := bytes.Clone(b)
		var rx RxFrame
		ok := l.input(in, &rx)
		n := l.counters.RxPackets + l.handled
		for _, d := range l.counters.Drops {
			n += d
		}
		if n != 1 {
			t.Fatalf("counted %d times", n)
		}
		if ok && (len(rx.Head) < packet.BTHLen || !l.localStations[Station{rx.Dst, rx.VLAN()}]) {
			t.Fatalf("accepted %+v", rx)
		}
		if l.tagged { // untag moved the addresses to the place of the tag
			b = slices.Concat(b[:packet.VLANLen], b[:12], b[12+packet.VLANLen:])
		}
		if !bytes.Equal(in, b) {
			t.Fatal("input was changed")
		}
	})
}
