package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/transport"
	"softroce/verbs"
	"softroce/verbs/rdmacm"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// A caller is a client of the connection manager with one event channel.
type caller struct {
	*rdmacm.Manager
	t  *testing.T
	ch *rdmacm.EventChannel
}

func newCaller(t *testing.T, f *fabrictest.Fabric, device string) *caller {
	t.Helper()
	m, err := rdmacm.Open(t.Context(), rdmacm.WithDevice(device), rdmacm.WithConn(f.Connect()))
	if err != nil {
		t.Fatal(err)
	}
	ch, err := m.CreateEventChannel(t.Context())
	if err != nil {
		m.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		ch.Close(context.Background()) // identifiers no longer use it
	})
	return &caller{m, t, ch}
}

func (c *caller) id(ps rdmacm.PortSpace, q verbs.QPType) *rdmacm.ID {
	c.t.Helper()
	id, err := c.CreateID(context.Background(), c.ch, ps, q)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// event waits for an event of type want.
func (c *caller) event(want rdmacm.EventType) *rdmacm.Event {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	e, err := c.ch.GetEvent(ctx)
	if err != nil {
		c.t.Fatalf("waiting for %v: %v", want, err)
	}
	if e.Type != want {
		c.t.Fatalf("event %v, status %d; want %v", e.Type, e.Status, want)
	}
	return e
}

// listen creates a listener at an address.
func (c *caller) listen(ps rdmacm.PortSpace, q verbs.QPType, addr string) (*rdmacm.ID, netip.AddrPort) {
	c.t.Helper()
	id := c.id(ps, q)
	noError(c.t, id.BindAddr(context.Background(), netip.MustParseAddrPort(addr)))
	noError(c.t, id.Listen(context.Background(), 4))
	info, err := id.Info(context.Background())
	noError(c.t, err)
	return id, info.Src
}

// routed creates an identifier with a route to an address.
func (c *caller) routed(ps rdmacm.PortSpace, q verbs.QPType, to netip.AddrPort) *rdmacm.ID {
	c.t.Helper()
	id := c.id(ps, q)
	noError(c.t, id.ResolveAddr(context.Background(), netip.AddrPort{}, to, time.Second))
	c.event(rdmacm.EventAddrResolved)
	noError(c.t, id.ResolveRoute(context.Background()))
	c.event(rdmacm.EventRouteResolved)
	return id
}

// accept accepts the connection of id, from the request to the event that it is established, with
// the queue pairs of two endpoints. The server has posted a receive.
func accept(t *testing.T, client, server *caller, id *rdmacm.ID, x, y *verbstest.Endpoint) {
	t.Helper()
	e := server.event(rdmacm.EventConnectRequest)
	noError(t, e.ID.ModifyQP(t.Context(), y.QP, verbs.QPSInit))
	y.Recv(0, 0, 100)
	noError(t, e.ID.ModifyQP(t.Context(), y.QP, verbs.QPSRTR, verbs.QPSRTS))
	noError(t, e.ID.Accept(t.Context(), rdmacm.ConnParam{QPNum: y.QPNum()}))
	client.event(rdmacm.EventConnectResponse)
	noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSRTR, verbs.QPSRTS))
	noError(t, id.Establish(t.Context()))
	server.event(rdmacm.EventEstablished)
}

// connectAndDisconnect returns how long the client waits, from when it disconnects, until the
// timewait of the connection has ended.
func connectAndDisconnect(t *testing.T, f *fabrictest.Fabric, client, server *caller, at netip.AddrPort) time.Duration {
	t.Helper()
	x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
	id := client.routed(rdmacm.PSTCP, verbs.RC, at)
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum()}))
	peer := server.event(rdmacm.EventConnectRequest).ID
	noError(t, peer.Accept(t.Context(), rdmacm.ConnParam{QPNum: y.QPNum()}))
	client.event(rdmacm.EventConnectResponse)
	noError(t, id.Establish(t.Context()))
	server.event(rdmacm.EventEstablished)
	began := time.Now()
	noError(t, id.Disconnect(t.Context()))
	server.event(rdmacm.EventDisconnected)
	noError(t, peer.Disconnect(t.Context()))
	client.event(rdmacm.EventDisconnected)
	client.event(rdmacm.EventTimewaitExit)
	return time.Since(began)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestConnectRC(t *testing.T) {
	for i, addr := range []string{"192.0.2.2:0", "[2001:db8::2]:0", "0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0", "192.0.2.2:0", "[::]:0"} {
		roceV1 := nic.RoCEv1GIDsBehind
		if i >= 6 {
			roceV1 = nic.RoCEv1GIDsBefore
		}
		t.Run(fmt.Sprintf("%s, GIDs of RoCE v1 %d", addr, roceV1), func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{RoCEv1GIDs: roceV1}})
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, at := server.listen(rdmacm.PSTCP, verbs.RC, addr)
			if a := at.Addr(); a.IsUnspecified() || a.IsLoopback() {
				at = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), at.Port())
			}
			x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
			id := client.routed(rdmacm.PSTCP, verbs.RC, at)
			noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSInit))
			noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum(), ResponderResources: 3, InitiatorDepth: 5, RetryCount: 6, RNRRetryCount: 7, PrivateData: []byte("hello"),
				ECEVendor: 0x123456, ECEOptions: 0x9abcdef0}))

			e := server.event(rdmacm.EventConnectRequest)
			p := e.Param
			got := fmt.Sprintf("%d %d %d %d %d %s %#x %#x", p.ResponderResources, p.InitiatorDepth, p.RetryCount, p.RNRRetryCount, len(p.PrivateData), bytes.TrimRight(p.PrivateData, "\x00"), p.ECEVendor, p.ECEOptions)
			if want := "5 3 6 7 56 hello 0x123456 0x9abcdef0"; got != want || p.QPNum != x.QPNum() {
				t.Errorf("request %s, want %s", got, want)
			}
			noError(t, e.ID.ModifyQP(t.Context(), y.QP, verbs.QPSInit))
			y.Recv(0, 0, 100)
			noError(t, e.ID.ModifyQP(t.Context(), y.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, e.ID.Accept(t.Context(), rdmacm.ConnParam{QPNum: y.QPNum(), ResponderResources: 5, InitiatorDepth: 3, RNRRetryCount: 7, PrivateData: []byte("welcome")}))

			r := client.event(rdmacm.EventConnectResponse)
			if len(r.Param.PrivateData) != 196 || !bytes.HasPrefix(r.Param.PrivateData, []byte("welcome")) || r.Param.QPNum != y.QPNum() {
				t.Errorf("response %+v", r.Param)
			}
			noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, id.Establish(t.Context()))
			server.event(rdmacm.EventEstablished)

			copy(x.Buf, "over RC")
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 7)})
			if wc := y.Completion(); string(y.Buf[:wc.ByteLen]) != "over RC" {
				t.Errorf("received %q", y.Buf[:wc.ByteLen])
			}

			noError(t, id.Disconnect(t.Context()))
			server.event(rdmacm.EventDisconnected)
			noError(t, e.ID.Disconnect(t.Context()))
			client.event(rdmacm.EventDisconnected)
			client.event(rdmacm.EventTimewaitExit)
			server.event(rdmacm.EventTimewaitExit)
		})
	}
}

// A connection uses a partition of both NICs, at any index of their tables. The default partition
// comes first.
func TestConnectUsesACommonPartition(t *testing.T) {
	for _, c := range []struct {
		client, server []uint16
		at             [2]int // in their tables
		none           bool
	}{
		{client: []uint16{0x8001, 0xffff}, server: []uint16{0x8002, 0x8003, 0x7fff}, at: [2]int{1, 2}},
		{client: []uint16{0, 0x8001}, server: []uint16{0xffff, 0x8001}, at: [2]int{1, 1}},
		{client: []uint16{0x7fff}, server: []uint16{0x7fff}, none: true}, // limited members do not receive from each other
		{client: []uint16{0x8001}, server: []uint16{0x8002}, none: true},
	} {
		t.Run(fmt.Sprintf("%#x", c.client), func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{PKeys: map[int][]uint16{0: c.client, 1: c.server}})
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, to := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
			x, y := verbstest.EndpointConfig{}.New(t, f.Open(0)), verbstest.EndpointConfig{}.New(t, f.Open(1))
			id := client.routed(rdmacm.PSTCP, verbs.RC, to)
			noError(t, id.ModifyQP(t.Context(), x.QP, verbs.QPSInit))
			noError(t, id.Connect(t.Context(), rdmacm.ConnParam{QPNum: x.QPNum()}))
			if c.none {
				dropped := func() (n uint64) {
					f.Engines[0].Do(func() { n = f.Devices[1].Counters().Drops[transport.DropPKey] })
					return n
				}
				for limit := time.Now().Add(30 * time.Second); dropped() == 0; time.Sleep(time.Millisecond) {
					if time.Now().After(limit) {
						t.Fatal("no request was dropped")
					}
				}
				return
			}
			accept(t, client, server, id, x, y)
			for i, qp := range []*verbs.QP{x.QP, y.QP} {
				a, err := qp.Query(t.Context())
				if err != nil || int(a.PKeyIndex) != c.at[i] {
					t.Errorf("queue pair %d is at index %d of the P_Key table, %v; want %d", i, a.PKeyIndex, err, c.at[i])
				}
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 7)})
			y.Completion()
		})
	}
}

func TestConnectionRequestsAreRejected(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	unused := netip.AddrPortFrom(at.Addr(), at.Port()-1)

	id := client.routed(rdmacm.PSTCP, verbs.RC, unused)
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
	if e := client.event(rdmacm.EventRejected); e.Status != 8 {
		t.Errorf("no listener: reason %d", e.Status)
	}
	id = client.routed(rdmacm.PSTCP, verbs.RC, at)
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
	noError(t, server.event(rdmacm.EventConnectRequest).ID.Reject(t.Context(), []byte("not you")))
	if e := client.event(rdmacm.EventRejected); e.Status != 28 || !bytes.HasPrefix(e.Param.PrivateData, []byte("not you")) {
		t.Errorf("rejected: reason %d, private data %q", e.Status, e.Param.PrivateData)
	}
	id = client.routed(rdmacm.PSUDP, verbs.UD, unused)
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
	if e := client.event(rdmacm.EventUnreachable); e.Status != 1 {
		t.Errorf("no datagram listener: status %d", e.Status)
	}
}

// A rule rejects the connections to a program, and those to another program are not disturbed.
func TestConnectionsAreRejectedByRule(t *testing.T) {
	recorder := capture.NewRecorder()
	f := fabrictest.New(t, fabrictest.Config{Sinks: map[int]wire.FrameSink{1: recorder}})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	connect := func() *rdmacm.ID {
		id := client.routed(rdmacm.PSTCP, verbs.RC, at)
		noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
		return id
	}
	for rule, want := range map[string]int{"stale_connection": 10, "consumer_defined": 28, "no_qp": 1, "0x1234": 0x1234} {
		if err := f.SetFaults(1, fmt.Sprintf("fail connection %s client %d nth 2", rule, os.Getpid())); err != nil {
			t.Fatal(err)
		}
		id := connect()
		noError(t, server.event(rdmacm.EventConnectRequest).ID.Reject(t.Context(), nil))
		if e := client.event(rdmacm.EventRejected); e.Status != 28 {
			t.Errorf("first connection: reason %d", e.Status)
		}
		noError(t, id.Destroy(t.Context()))
		id = connect()
		if e := client.event(rdmacm.EventRejected); e.Status != want {
			t.Errorf("%s: reason %d, want %d", rule, e.Status, want)
		}
		noError(t, id.Destroy(t.Context()))
		if l := f.Server.Snapshot().Devices[1].Faults; len(l) != 1 || l[0].Matched != 2 || l[0].Acted != 1 {
			t.Errorf("%s: counted %+v", rule, l)
		}
		if l := recorder.Notes(); len(l) != 1 || l[0].PID != os.Getpid() || l[0].NIC != "nic1" || !strings.Contains(l[0].Text, "fail connection "+rule) {
			t.Errorf("%s: notes %+v", rule, l)
		}
		recorder.Reset()
	}
	if err := f.SetFaults(1, "fail connection no_resources client other\nfail connection no_resources nic nic0"); err != nil {
		t.Fatal(err)
	}
	connect()
	server.event(rdmacm.EventConnectRequest)
}

// The peer of a program is unreachable at once: its request is not sent. Another connection of the
// program, and those of another NIC, are not disturbed.
func TestPeersAreUnreachableByRule(t *testing.T) {
	recorder := capture.NewRecorder()
	f := fabrictest.New(t, fabrictest.Config{Sinks: map[int]wire.FrameSink{0: recorder}})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	for _, c := range []struct {
		space   rdmacm.PortSpace
		service verbs.QPType
	}{{rdmacm.PSTCP, verbs.RC}, {rdmacm.PSUDP, verbs.UD}} {
		_, at := server.listen(c.space, c.service, "192.0.2.2:0")
		if err := f.SetFaults(0, fmt.Sprintf("fail connection unreachable client %d nth 1", os.Getpid())); err != nil {
			t.Fatal(err)
		}
		recorder.Reset()
		id := client.routed(c.space, c.service, at)
		noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
		if e := client.event(rdmacm.EventUnreachable); e.ID != id || e.Status != -int(syscall.ETIMEDOUT) {
			t.Errorf("%v: event %+v", c.space, e)
		}
		if err := id.Connect(t.Context(), rdmacm.ConnParam{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: the identifier connects again: %v", c.space, err)
		}
		if l := recorder.Notes(); len(l) != 1 || l[0].PID != os.Getpid() || !strings.Contains(l[0].Text, "fail connection unreachable") {
			t.Errorf("%v: notes %+v", c.space, l)
		}
		if l := recorder.Packets(); len(l) != 0 {
			t.Errorf("%v: packets %v", c.space, l)
		}
		noError(t, id.Destroy(t.Context()))
		id = client.routed(c.space, c.service, at)
		noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
		noError(t, server.event(rdmacm.EventConnectRequest).ID.Reject(t.Context(), nil))
		if e, err := client.ch.GetEvent(t.Context()); err != nil || e.ID != id || e.Status == -int(syscall.ETIMEDOUT) {
			t.Errorf("%v: the second connection: %+v, %v", c.space, e, err)
		}
		if l := f.Server.Snapshot().Devices[1].Faults; len(l) != 0 {
			t.Errorf("rules of the other NIC: %+v", l)
		}
	}
}

// The timewait of a connection is as long as a rule for its program says. The rule does not count
// that of the peer, which has another NIC.
func TestTimewaitIsProlongedByRule(t *testing.T) {
	const longer = 3 * time.Second
	recorder := capture.NewRecorder()
	f := fabrictest.New(t, fabrictest.Config{Sinks: map[int]wire.FrameSink{0: recorder}})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	rule := fmt.Sprintf("slow timewait %v client %d", longer, os.Getpid())
	if err := f.SetFaults(0, rule); err != nil {
		t.Fatal(err)
	}
	if took := connectAndDisconnect(t, f, client, server, at); took < longer {
		t.Errorf("timewait has ended after %v", took)
	}
	server.event(rdmacm.EventTimewaitExit)
	s := f.Server.Snapshot()
	if l := s.Devices[0].Faults; len(l) != 1 || l[0].Acted != 1 || len(s.Devices[1].Faults) != 0 {
		t.Errorf("counted %+v, and %+v at the peer", l, s.Devices[1].Faults)
	}
	if l := recorder.Notes(); len(l) != 1 || l[0].PID != os.Getpid() || !strings.Contains(l[0].Text, "slow timewait") {
		t.Errorf("notes %+v", l)
	}
}

// Rules of a fault program find the messages of a connection, and no others. Repeated messages do
// not disturb it.
func TestFaultsOfMessages(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	if err := f.SetFaults(0, "duplicate cm req\nduplicate receive cm rep\nduplicate send cm rtu\nduplicate cm dreq,drep\nmark receive cm req\nmark cm rej,sidr_req,lap"); err != nil {
		t.Fatal(err)
	}
	connectAndDisconnect(t, f, client, server, at)
	for i, r := range f.Server.Snapshot().Devices[0].Faults {
		if found := r.Acted > 0; found != (i < 4) {
			t.Errorf("%s: acted on %d messages", r.Rule, r.Acted)
		}
	}
}

// A connection survives the loss, the delay and the repetition of each of its messages, and reports
// the same events. The sender repeats what is lost after some seconds.
func TestConnectionsSurviveFaultsOfMessages(t *testing.T) {
	for _, rule := range []string{"drop send cm req count 1", "drop receive cm rep count 1", "drop send cm rtu count 1", "drop send cm dreq count 1",
		"delay 50ms cm req,rep,rtu,dreq,drep", "duplicate 3 cm req,rep,rtu,dreq,drep"} {
		t.Run(strings.ReplaceAll(rule, " ", "_"), func(t *testing.T) {
			t.Parallel()
			f := fabrictest.New(t, fabrictest.Config{NoLeakCheck: true})
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
			if err := f.SetFaults(0, rule); err != nil {
				t.Fatal(err)
			}
			id := client.routed(rdmacm.PSTCP, verbs.RC, at)
			noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
			peer := server.event(rdmacm.EventConnectRequest).ID
			noError(t, peer.Accept(t.Context(), rdmacm.ConnParam{}))
			client.event(rdmacm.EventConnectResponse)
			noError(t, id.Establish(t.Context()))
			server.event(rdmacm.EventEstablished)
			noError(t, id.Disconnect(t.Context()))
			server.event(rdmacm.EventDisconnected)
			noError(t, peer.Disconnect(t.Context()))
			client.event(rdmacm.EventDisconnected)
			client.event(rdmacm.EventTimewaitExit)
			if l := f.Server.Snapshot().Devices[0].Faults; len(l) != 1 || l[0].Acted == 0 {
				t.Errorf("counted %+v", l)
			}
		})
	}
}

// A dead client leaves no identifiers, and its peers are notified in every state.
func TestDeadClientDisconnectsItsPeers(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	server := newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0")
	for _, established := range []bool{false, true} {
		client := newCaller(t, f, "nic0")
		id := client.routed(rdmacm.PSTCP, verbs.RC, at)
		client.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.1:7001") // a port that is free again afterwards
		noError(t, id.Connect(t.Context(), rdmacm.ConnParam{}))
		e := server.event(rdmacm.EventConnectRequest)
		if established {
			noError(t, e.ID.Accept(t.Context(), rdmacm.ConnParam{}))
			client.event(rdmacm.EventConnectResponse)
			noError(t, id.Establish(t.Context()))
			server.event(rdmacm.EventEstablished)
		}
		client.Close()
		if established {
			server.event(rdmacm.EventDisconnected)
		} else if r := server.event(rdmacm.EventRejected); r.Status != 4 {
			t.Errorf("reason %d, want 4", r.Status)
		}
		noError(t, e.ID.Destroy(t.Context()))
	}
	if n := len(f.Server.Snapshot().CMIDs); n != 1 {
		t.Errorf("%d identifiers, want only the listener", n)
	}
}

func TestPortAndStateErrors(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	c, other := newCaller(t, f, ""), newCaller(t, f, "")
	taken, at := c.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.1:0")
	port := at.Port()
	bind := func(ps rdmacm.PortSpace, addr string, options ...rdmacm.IDOption) error {
		id := other.id(ps, verbs.RC)
		defer id.Destroy(context.Background())
		for _, o := range options {
			noError(t, id.SetOption(t.Context(), o, 1))
		}
		return id.BindAddr(t.Context(), netip.MustParseAddrPort(addr))
	}
	for _, x := range []struct {
		what string
		err  error
		want error
	}{
		{"a port in use", bind(rdmacm.PSTCP, fmt.Sprintf("192.0.2.1:%d", port)), syscall.EADDRINUSE},
		{"a wildcard address with a port in use", bind(rdmacm.PSTCP, fmt.Sprintf("0.0.0.0:%d", port)), syscall.EADDRINUSE},
		{"the IPv6 wildcard", bind(rdmacm.PSTCP, fmt.Sprintf("[::]:%d", port)), syscall.EADDRINUSE},
		{"the IPv6 wildcard, for IPv6 only", bind(rdmacm.PSTCP, fmt.Sprintf("[::]:%d", port), rdmacm.OptionAFOnly), nil},
		{"a port with a listener, with OptionReuseAddr", bind(rdmacm.PSTCP, fmt.Sprintf("192.0.2.1:%d", port), rdmacm.OptionReuseAddr), syscall.EADDRINUSE},
		{"another address", bind(rdmacm.PSTCP, fmt.Sprintf("192.0.2.2:%d", port)), nil},
		{"another port space", bind(rdmacm.PSUDP, fmt.Sprintf("192.0.2.1:%d", port)), nil},
		{"an address that no device has", bind(rdmacm.PSTCP, "192.0.2.77:0"), syscall.EADDRNOTAVAIL},
		{"the loopback address, which is a wildcard, with a port in use", bind(rdmacm.PSTCP, fmt.Sprintf("127.0.0.1:%d", port)), syscall.EADDRINUSE},
		{"the loopback address", bind(rdmacm.PSTCP, "127.0.0.1:0"), nil},
		{"binding a second time", taken.BindAddr(t.Context(), at), syscall.EINVAL},
		{"connecting without a route", taken.Connect(t.Context(), rdmacm.ConnParam{}), syscall.EINVAL},
		{"accepting without a request", taken.Accept(t.Context(), rdmacm.ConnParam{}), syscall.EINVAL},
		{"disconnecting without a connection", taken.Disconnect(t.Context()), syscall.EINVAL},
		{"an unknown option", taken.SetOption(t.Context(), 77, 1), syscall.ENOSYS},
		{"OptionReuseAddr after binding", taken.SetOption(t.Context(), rdmacm.OptionReuseAddr, 1), syscall.EINVAL},
		{"another program's channel", taken.Migrate(t.Context(), other.ch), syscall.EINVAL},
		{"a channel in use", c.ch.Close(t.Context()), syscall.EBUSY},
		{"an unknown port space", func() error { _, err := c.CreateID(t.Context(), c.ch, 7, verbs.RC); return err }(), syscall.EINVAL},
		{"an unknown queue pair", c.routed(rdmacm.PSTCP, verbs.RC, at).Connect(t.Context(), rdmacm.ConnParam{QPNum: 0xabcde}), syscall.EPERM},
		{"private data longer than a request holds", c.routed(rdmacm.PSTCP, verbs.RC, at).Connect(t.Context(), rdmacm.ConnParam{PrivateData: make([]byte, 57)}), syscall.EINVAL},
		{"an unknown device", func() error {
			_, err := rdmacm.Open(t.Context(), rdmacm.WithDevice("nic9"), rdmacm.WithConn(f.Connect()))
			return err
		}(), syscall.ENODEV},
	} {
		if !errors.Is(x.err, x.want) || x.want == nil && x.err != nil {
			t.Errorf("%s: %v, want %v", x.what, x.err, x.want)
		}
	}
}

// A listener queues as many requests as its backlog. They are rejected when it is destroyed.
func TestListenBacklog(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	l, at := server.listen(rdmacm.PSTCP, verbs.RC, "192.0.2.2:0") // of four
	for range 6 {
		noError(t, client.routed(rdmacm.PSTCP, verbs.RC, at).Connect(t.Context(), rdmacm.ConnParam{}))
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if n := len(f.Server.Snapshot().CMIDs); n == 1+6+4 {
			break
		} else if time.Now().After(limit) {
			t.Fatalf("%d identifiers, want 11", n)
		}
	}
	noError(t, l.Destroy(t.Context()))
	for range 4 {
		if e := client.event(rdmacm.EventRejected); e.Status != 28 {
			t.Errorf("REJ reason %d", e.Status)
		}
	}
}

func TestConnectUD(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(rdmacm.PSUDP, verbs.UD, "192.0.2.2:0")
	y := verbstest.EndpointConfig{Type: verbs.UD}.New(t, f.Open(1))
	id := client.routed(rdmacm.PSUDP, verbs.UD, at)
	noError(t, id.Connect(t.Context(), rdmacm.ConnParam{PrivateData: []byte("where?")}))
	e := server.event(rdmacm.EventConnectRequest)
	if len(e.Param.PrivateData) != 180 || !bytes.HasPrefix(e.Param.PrivateData, []byte("where?")) {
		t.Errorf("request with private data %q", e.Param.PrivateData)
	}
	noError(t, e.ID.ModifyQP(t.Context(), y.QP, verbs.QPSInit, verbs.QPSRTR, verbs.QPSRTS))
	noError(t, e.ID.Accept(t.Context(), rdmacm.ConnParam{QPNum: y.QPNum(), PrivateData: []byte("here")}))
	r := client.event(rdmacm.EventEstablished)
	if r.UD == nil || r.UD.QPNum != y.QPNum() || r.UD.QKey != 0x01234567 || r.UD.AHAttr.GRH.DGID.Addr() != at.Addr() || len(r.Param.PrivateData) != 136 {
		t.Errorf("reply %+v %+v", r.UD, r.Param)
	}
	group := netip.MustParseAddr("239.1.2.3")
	noError(t, id.JoinMulticast(t.Context(), group, 4711))
	if m := client.event(rdmacm.EventMulticastJoin); m.Cookie != 4711 || m.UD.QPNum != 0xffffff || m.UD.AHAttr.GRH.DGID.Addr() != group {
		t.Errorf("joined: %+v %+v", m, m.UD)
	}
	if err := id.JoinMulticast(t.Context(), group, 1); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("joining a second time: %v", err)
	}
	noError(t, id.LeaveMulticast(t.Context(), group))
	if err := id.LeaveMulticast(t.Context(), group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("leaving twice: %v", err)
	}
}

// An identifier's events move with it to another channel.
func TestMigrateMovesEvents(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	c := newCaller(t, f, "nic0")
	id := c.id(rdmacm.PSTCP, verbs.RC)
	noError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.2:7"), time.Second))
	second, err := c.CreateEventChannel(t.Context())
	noError(t, err)
	defer second.Close(context.Background())
	noError(t, id.Migrate(t.Context(), second))
	e, err := second.GetEvent(t.Context())
	if err != nil || e.Type != rdmacm.EventAddrResolved || e.ID != id {
		t.Errorf("event on the other channel: %+v, %v", e, err)
	}
	noError(t, id.Destroy(t.Context()))
}

// A failed resolution reports an event too.
func TestResolveAddrWithoutARoute(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{NICs: 1})
	c := newCaller(t, f, "")
	id := c.id(rdmacm.PSTCP, verbs.RC)
	if err := id.ResolveAddr(t.Context(), netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("[2001:db8::9]:1"), time.Second); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("resolving between address families: %v", err)
	}
	for _, to := range []string{"[fe80::1%lo]:1", "127.0.0.1:1", "[::1]:1"} {
		id = c.id(rdmacm.PSTCP, verbs.RC)
		noError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(to), time.Second))
		if e := c.event(rdmacm.EventAddrError); e.Status != -int(syscall.ENETUNREACH) {
			t.Errorf("%s: status %d", to, e.Status)
		}
	}
}
