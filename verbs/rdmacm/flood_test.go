package rdmacm_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"softroce/cm"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/packet"
	"softroce/verbs"
	"softroce/verbs/rdmacm"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// A silentNeighbor is an interface on which no neighbor responds.
type silentNeighbor struct{ wire.Interface }

func (s silentNeighbor) Resolve(ctx context.Context, p *wire.Path) error {
	if p.DstMAC != [6]byte{} {
		return nil
	}
	<-ctx.Done()
	return wire.ErrUnreachable
}

// A server that serves one request after the other accepts a client at its first REQ, though 2,000
// REQs a second come from addresses that do not exist.
func TestClientConnectsDuringFloodOfRequests(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{NICs: 3, WrapInterface: func(i int, inner wire.Interface) wire.Interface {
		if i == 1 {
			return silentNeighbor{inner}
		}
		return inner
	}})
	client, program := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := program.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var flooded, accepted atomic.Int64
	go func() {
		defer close(done)
		for i := uint32(0); ctx.Err() == nil; i++ {
			f.Devices[2].SendMAD(forgedREQ(i, at))
			flooded.Add(1)
			time.Sleep(time.Second / 2000)
		}
	}()
	server := make(chan struct{})
	y := verbstest.EndpointConfig{}.New(t, f.Open(1))
	go func() {
		defer close(server)
		for {
			e, err := program.ch.GetEvent(ctx)
			if err != nil {
				return
			}
			switch e.Type {
			case rdmacm.EventConnectRequest:
				qp, err := y.PD.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
				if err == nil {
					err = e.ID.ModifyQP(ctx, qp, verbs.QPSInit, verbs.QPSRTR, verbs.QPSRTS)
				}
				if err == nil {
					err = e.ID.Accept(ctx, rdmacm.ConnParam{QPNum: qp.QPNum()})
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("serve a request: %v", err)
				}
				accepted.Add(1)
			case rdmacm.EventUnreachable:
				e.ID.Destroy(ctx)
			}
		}
	}()
	defer func() {
		cancel()
		<-server
		<-done
	}()
	for limit := time.Now().Add(30 * time.Second); accepted.Load() < 100; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the server accepted %d requests in 30 s", accepted.Load())
		}
	}
	x := verbstest.EndpointConfig{}.New(t, f.Open(0))
	id := client.routed(rdmacm.PSTCP, verbs.RC, at)
	noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSInit))
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum()}))
	client.event(rdmacm.EventConnectResponse)
	var sent uint64
	f.Engines[0].Do(func() { sent = f.Devices[0].Counters().TxOpcode[packet.Opcode(packet.UD)|packet.SendOnly] })
	if sent != 1 {
		t.Errorf("the client sent %d messages until it was accepted, want one REQ", sent)
	}
	t.Logf("%d forged requests, %d accepted", flooded.Load(), accepted.Load())
}

// forgedREQ is a REQ from an address that does not exist.
func forgedREQ(i uint32, to netip.AddrPort) *nic.MAD {
	from := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i%100)})
	q := &cm.REQ{ServiceID: cm.ServiceID(cm.PortSpaceTCP, to.Port()), LocalID: i, LocalGUID: uint64(i), LocalQPN: 0x1000 + i,
		RemoteResponseTime: cm.ResponseTime, LocalResponseTime: cm.ResponseTime, PathMTU: 3, MaxCMRetries: cm.MaxRetries, PKey: packet.DefaultPKey}
	q.Primary.LocalGID, q.Primary.RemoteGID, q.Primary.ACKTimeout = from.As16(), to.Addr().As16(), 17
	h := cm.IPHeader{SrcPort: 1, Src: from, Dst: to.Addr()}
	h.Put(q.Private[:])
	m := &nic.MAD{PKey: packet.DefaultPKey, Path: wire.Path{Src: from, Dst: to.Addr(), HopLimit: 64}}
	cm.Put(&m.Data, uint64(i), 0, q)
	return m
}

// The connections of addresses in a VLAN, by themselves or beside the same addresses untagged, are
// tagged from the REQ on.
func TestConnectInVLAN(t *testing.T) {
	for _, c := range []struct{ name, server, client string }{
		{"bound to an address of a VLAN", "10.7.0.2:0", ""},
		{"to an address of a VLAN from any", "0.0.0.0:0", ""},
		{"from a bound address", "0.0.0.0:0", "10.7.0.1:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tagged, untagged atomic.Int64
			f := fabrictest.New(t, fabrictest.Config{
				WrapInterface: func(i int, inner wire.Interface) wire.Interface {
					p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, 0, byte(i + 1)}), 24)
					return wire.StaticTrunk("", inner.MAC(), inner.MTU(), []wire.VLANAddress{{Prefix: p, VLAN: 7, Egress: wire.Egress{0: 1, 2: 5, 6: 6}}}, inner.Addresses()...)
				},
				WrapLink: func(_ int, inner wire.Link) wire.Link { return &tagCounter{inner, &tagged, &untagged} },
			})
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, at := server.listen(rdmacm.PSTCP, verbs.RC, c.server)
			at = netip.AddrPortFrom(netip.MustParseAddr("10.7.0.2"), at.Port())
			x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
			id := client.id(rdmacm.PSTCP, verbs.RC)
			if c.client != "" {
				noError(t, id.BindAddr(t.Context(), netip.MustParseAddrPort(c.client)))
			}
			noError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, at, time.Second))
			client.event(rdmacm.EventAddrResolved)
			noError(t, id.SetOption(t.Context(), rdmacm.OptionTOS, tos))
			noError(t, id.ResolveRoute(t.Context()))
			client.event(rdmacm.EventRouteResolved)
			noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSInit))
			noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum()}))
			accept(t, client, server, id, x, y)
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: x.SGE(0, 7)})
			y.Completion()
			x.Completion() // the ACK has arrived
			if n := tagged.Load(); n < 5 || untagged.Load() != 0 {
				t.Errorf("%d tagged and %d other frames; want REQ, REP, RTU, a SEND and its ACK with tags and the priority of the type of service", n, untagged.Load())
			}
			for _, qp := range []*verbs.QP{x.QP, y.QP} {
				a, err := qp.Query(t.Context())
				noError(t, err)
				if a.AHAttr.SL != priority || a.AHAttr.GRH.TrafficClass != tos {
					t.Errorf("service level %d, traffic class %#02x", a.AHAttr.SL, a.AHAttr.GRH.TrafficClass)
				}
			}
		})
	}
}

// A type of service for bulk traffic, and the priority that the VLAN interface gives it.
const tos, priority = 0x68, 5

// A tagCounter counts sent frames with the tag of VLAN 7 and that priority, and others.
type tagCounter struct {
	wire.Link
	tagged, untagged *atomic.Int64
}

func (l *tagCounter) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch { // before a peer can have it
		if batch[i].Path.VLAN == 7 && batch[i].Path.Priority == priority {
			l.tagged.Add(1)
		} else {
			l.untagged.Add(1)
		}
	}
	return l.Link.Send(now, batch)
}
