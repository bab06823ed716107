package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"softroce/transport"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A caller is a program of the connection manager with one event channel.
type caller struct {
	*verbs.CM
	t  *testing.T
	ch *verbs.CMChannel
}

func newCaller(t *testing.T, f *verbstest.Fabric, device string) *caller {
	t.Helper()
	m, err := verbs.OpenCM(t.Context(), device, verbs.WithConn(f.Connect()))
	if err != nil {
		t.Fatal(err)
	}
	ch, err := m.NewChannel()
	if err != nil {
		m.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		ch.Close() // which identifiers used until now
	})
	return &caller{m, t, ch}
}

func (c *caller) id(ps verbs.CMPortSpace, q verbs.QPType) *verbs.CMID {
	c.t.Helper()
	id, err := c.NewID(c.ch, ps, q)
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// event waits for an event, which must be of a type.
func (c *caller) event(want verbs.CMEventType) *verbs.CMEvent {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	e, err := c.ch.Event(ctx)
	if err != nil {
		c.t.Fatalf("waiting for %v: %v", want, err)
	}
	if e.Type != want {
		c.t.Fatalf("event %v, status %d; want %v", e.Type, e.Status, want)
	}
	return e
}

// listen makes a listener at an address.
func (c *caller) listen(ps verbs.CMPortSpace, q verbs.QPType, addr string) (*verbs.CMID, netip.AddrPort) {
	c.t.Helper()
	id := c.id(ps, q)
	noError(c.t, id.Bind(netip.MustParseAddrPort(addr)))
	noError(c.t, id.Listen(4))
	info, err := id.Info()
	noError(c.t, err)
	return id, info.Src
}

// routed makes an identifier with a route to an address.
func (c *caller) routed(ps verbs.CMPortSpace, q verbs.QPType, to netip.AddrPort) *verbs.CMID {
	c.t.Helper()
	id := c.id(ps, q)
	noError(c.t, id.ResolveAddr(netip.AddrPort{}, to, time.Second))
	c.event(verbs.CMAddrResolved)
	noError(c.t, id.ResolveRoute())
	c.event(verbs.CMRouteResolved)
	return id
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCMConnectsQueuePairs(t *testing.T) {
	for _, addr := range []string{"192.0.2.2:0", "[2001:db8::2]:0", "0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			f := verbstest.New(t)
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, at := server.listen(verbs.CMTCP, verbs.RC, addr)
			if a := at.Addr(); a.IsUnspecified() || a.IsLoopback() {
				at = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), at.Port())
			}
			x, y := verbstest.Ends{}.New(t, f.Open(0)), verbstest.Ends{}.New(t, f.Open(1))
			id := client.routed(verbs.CMTCP, verbs.RC, at)
			noError(t, id.To(x.QP, verbs.QPSInit))
			noError(t, id.Connect(verbs.CMParam{QPN: x.QPNum(), ResponderResources: 3, InitiatorDepth: 5, RetryCnt: 6, RNRRetry: 7, Private: []byte("hello"),
				ECEVendor: 0x123456, ECEOptions: 0x9abcdef0}))

			e := server.event(verbs.CMConnectRequest)
			p := e.Param
			got := fmt.Sprintf("%d %d %d %d %d %s %#x %#x", p.ResponderResources, p.InitiatorDepth, p.RetryCnt, p.RNRRetry, len(p.Private), bytes.TrimRight(p.Private, "\x00"), p.ECEVendor, p.ECEOptions)
			if want := "5 3 6 7 56 hello 0x123456 0x9abcdef0"; got != want || p.QPN != x.QPNum() {
				t.Errorf("the request says %s, want %s", got, want)
			}
			noError(t, e.ID.To(y.QP, verbs.QPSInit))
			y.Recv(0, 0, 100)
			noError(t, e.ID.To(y.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, e.ID.Accept(verbs.CMParam{QPN: y.QPNum(), ResponderResources: 5, InitiatorDepth: 3, RNRRetry: 7, Private: []byte("welcome")}))

			r := client.event(verbs.CMConnectResponse)
			if len(r.Param.Private) != 196 || !bytes.HasPrefix(r.Param.Private, []byte("welcome")) || r.Param.QPN != y.QPNum() {
				t.Errorf("the response says %+v", r.Param)
			}
			noError(t, id.To(x.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, id.Establish())
			server.event(verbs.CMEstablished)

			copy(x.Buf, "over RC")
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 7)})
			if wc := y.Completion(); string(y.Buf[:wc.ByteLen]) != "over RC" {
				t.Errorf("received %q", y.Buf[:wc.ByteLen])
			}

			noError(t, id.Disconnect())
			server.event(verbs.CMDisconnected)
			noError(t, e.ID.Disconnect())
			client.event(verbs.CMDisconnected)
			client.event(verbs.CMTimewaitExit)
			server.event(verbs.CMTimewaitExit)
		})
	}
}

// A connection is of a partition that both NICs are in, wherever it stands in their tables: of the default one before others.
func TestCMConnectsWithinAPartition(t *testing.T) {
	for _, c := range []struct {
		client, server []uint16
		at             [2]int // in their tables
		none           bool
	}{
		{client: []uint16{0x8001, 0xffff}, server: []uint16{0x8002, 0x8003, 0x7fff}, at: [2]int{1, 2}},
		{client: []uint16{0, 0x8001}, server: []uint16{0xffff, 0x8001}, at: [2]int{1, 1}},
		{client: []uint16{0x7fff}, server: []uint16{0x7fff}, none: true}, // limited members do not hear each other
		{client: []uint16{0x8001}, server: []uint16{0x8002}, none: true},
	} {
		t.Run(fmt.Sprintf("%#x", c.client), func(t *testing.T) {
			f := verbstest.New(t, verbstest.WithPKeys(0, c.client...), verbstest.WithPKeys(1, c.server...))
			client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
			_, to := server.listen(verbs.CMTCP, verbs.RC, "192.0.2.2:0")
			x, y := verbstest.Ends{}.New(t, f.Open(0)), verbstest.Ends{}.New(t, f.Open(1))
			id := client.routed(verbs.CMTCP, verbs.RC, to)
			noError(t, id.To(x.QP, verbs.QPSInit))
			noError(t, id.Connect(verbs.CMParam{QPN: x.QPNum()}))
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
			e := server.event(verbs.CMConnectRequest)
			noError(t, e.ID.To(y.QP, verbs.QPSInit))
			y.Recv(0, 0, 100)
			noError(t, e.ID.To(y.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, e.ID.Accept(verbs.CMParam{QPN: y.QPNum()}))
			client.event(verbs.CMConnectResponse)
			noError(t, id.To(x.QP, verbs.QPSRTR, verbs.QPSRTS))
			noError(t, id.Establish())
			server.event(verbs.CMEstablished)
			for i, qp := range []*verbs.QP{x.QP, y.QP} {
				a, err := qp.Query()
				if err != nil || int(a.PKeyIndex) != c.at[i] {
					t.Errorf("queue pair %d is at index %d of the P_Key table, %v; want %d", i, a.PKeyIndex, err, c.at[i])
				}
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 7)})
			y.Completion()
		})
	}
}

func TestCMRefusals(t *testing.T) {
	f := verbstest.New(t)
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(verbs.CMTCP, verbs.RC, "192.0.2.2:0")
	nobody := netip.AddrPortFrom(at.Addr(), at.Port()-1)

	id := client.routed(verbs.CMTCP, verbs.RC, nobody)
	noError(t, id.Connect(verbs.CMParam{}))
	if e := client.event(verbs.CMRejected); e.Status != 8 {
		t.Errorf("nobody listens: reason %d", e.Status)
	}
	id = client.routed(verbs.CMTCP, verbs.RC, at)
	noError(t, id.Connect(verbs.CMParam{}))
	noError(t, server.event(verbs.CMConnectRequest).ID.Reject([]byte("not you")))
	if e := client.event(verbs.CMRejected); e.Status != 28 || !bytes.HasPrefix(e.Param.Private, []byte("not you")) {
		t.Errorf("refused: reason %d, %q", e.Status, e.Param.Private)
	}
	id = client.routed(verbs.CMUDP, verbs.UD, nobody)
	noError(t, id.Connect(verbs.CMParam{}))
	if e := client.event(verbs.CMUnreachable); e.Status != 1 {
		t.Errorf("nobody listens for datagrams: status %d", e.Status)
	}
}

// A client that dies leaves nothing, and its peers hear that it is gone, whatever it was at.
func TestCMOfAClientThatDies(t *testing.T) {
	f := verbstest.New(t)
	server := newCaller(t, f, "nic1")
	_, at := server.listen(verbs.CMTCP, verbs.RC, "192.0.2.2:0")
	for _, established := range []bool{false, true} {
		client := newCaller(t, f, "nic0")
		id := client.routed(verbs.CMTCP, verbs.RC, at)
		client.listen(verbs.CMTCP, verbs.RC, "192.0.2.1:7001") // a port that is free again afterwards
		noError(t, id.Connect(verbs.CMParam{}))
		e := server.event(verbs.CMConnectRequest)
		if established {
			noError(t, e.ID.Accept(verbs.CMParam{}))
			client.event(verbs.CMConnectResponse)
			noError(t, id.Establish())
			server.event(verbs.CMEstablished)
		}
		client.Close()
		if established {
			server.event(verbs.CMDisconnected)
		} else if r := server.event(verbs.CMRejected); r.Status != 4 {
			t.Errorf("reason %d, want 4", r.Status)
		}
		noError(t, e.ID.Destroy())
	}
	if n := len(f.Server.Snapshot().CMIDs); n != 1 {
		t.Errorf("%d identifiers, want the listener alone", n)
	}
}

func TestCMPortsAndStates(t *testing.T) {
	f := verbstest.New(t)
	c, other := newCaller(t, f, ""), newCaller(t, f, "")
	taken, at := c.listen(verbs.CMTCP, verbs.RC, "192.0.2.1:0")
	port := at.Port()
	bind := func(ps verbs.CMPortSpace, addr string, options ...verbs.CMOption) error {
		id := other.id(ps, verbs.RC)
		defer id.Destroy()
		for _, o := range options {
			noError(t, id.SetOption(o, 1))
		}
		return id.Bind(netip.MustParseAddrPort(addr))
	}
	for _, x := range []struct {
		what string
		err  error
		want error
	}{
		{"a port that is in use", bind(verbs.CMTCP, fmt.Sprintf("192.0.2.1:%d", port)), syscall.EADDRINUSE},
		{"any address of a port that is in use", bind(verbs.CMTCP, fmt.Sprintf("0.0.0.0:%d", port)), syscall.EADDRINUSE},
		{"IPv6's any address", bind(verbs.CMTCP, fmt.Sprintf("[::]:%d", port)), syscall.EADDRINUSE},
		{"IPv6's any address, for IPv6 only", bind(verbs.CMTCP, fmt.Sprintf("[::]:%d", port), verbs.CMAFOnly), nil},
		{"a port that has a listener, to be used again", bind(verbs.CMTCP, fmt.Sprintf("192.0.2.1:%d", port), verbs.CMReuseAddr), syscall.EADDRINUSE},
		{"another address", bind(verbs.CMTCP, fmt.Sprintf("192.0.2.2:%d", port)), nil},
		{"another port space", bind(verbs.CMUDP, fmt.Sprintf("192.0.2.1:%d", port)), nil},
		{"nobody's address", bind(verbs.CMTCP, "192.0.2.77:0"), syscall.EADDRNOTAVAIL},
		{"the loopback's address, which is any one, of a port that is in use", bind(verbs.CMTCP, fmt.Sprintf("127.0.0.1:%d", port)), syscall.EADDRINUSE},
		{"the loopback's address", bind(verbs.CMTCP, "127.0.0.1:0"), nil},
		{"to bind a second time", taken.Bind(at), syscall.EINVAL},
		{"to connect without a route", taken.Connect(verbs.CMParam{}), syscall.EINVAL},
		{"to accept nothing", taken.Accept(verbs.CMParam{}), syscall.EINVAL},
		{"to end no connection", taken.Disconnect(), syscall.EINVAL},
		{"an option that there is none", taken.SetOption(77, 1), syscall.ENOSYS},
		{"to use a port again when it is late", taken.SetOption(verbs.CMReuseAddr, 1), syscall.EINVAL},
		{"another program's channel", taken.Migrate(other.ch), syscall.EINVAL},
		{"a channel that is in use", c.ch.Close(), syscall.EBUSY},
		{"a port space that there is none", func() error { _, err := c.NewID(c.ch, 7, verbs.RC); return err }(), syscall.EINVAL},
		{"a queue pair that there is none", c.routed(verbs.CMTCP, verbs.RC, at).Connect(verbs.CMParam{QPN: 0xabcde}), syscall.EPERM},
		{"more private data than a request has", c.routed(verbs.CMTCP, verbs.RC, at).Connect(verbs.CMParam{Private: make([]byte, 57)}), syscall.EINVAL},
		{"a device that there is none", func() error {
			_, err := verbs.OpenCM(t.Context(), "nic9", verbs.WithConn(f.Connect()))
			return err
		}(), syscall.ENODEV},
	} {
		if !errors.Is(x.err, x.want) || x.want == nil && x.err != nil {
			t.Errorf("%s: %v, want %v", x.what, x.err, x.want)
		}
	}
}

// A listener that nobody serves holds as many requests as its backlog says; when it goes, they are refused.
func TestCMBacklog(t *testing.T) {
	f := verbstest.New(t)
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	l, at := server.listen(verbs.CMTCP, verbs.RC, "192.0.2.2:0") // of four
	for range 6 {
		noError(t, client.routed(verbs.CMTCP, verbs.RC, at).Connect(verbs.CMParam{}))
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if n := len(f.Server.Snapshot().CMIDs); n == 1+6+4 {
			break
		} else if time.Now().After(limit) {
			t.Fatalf("%d identifiers, want 11", n)
		}
	}
	noError(t, l.Destroy())
	for range 4 {
		if e := client.event(verbs.CMRejected); e.Status != 28 {
			t.Errorf("reason %d", e.Status)
		}
	}
}

func TestCMDatagrams(t *testing.T) {
	f := verbstest.New(t)
	client, server := newCaller(t, f, "nic0"), newCaller(t, f, "nic1")
	_, at := server.listen(verbs.CMUDP, verbs.UD, "192.0.2.2:0")
	y := verbstest.Ends{Type: verbs.UD}.New(t, f.Open(1))
	id := client.routed(verbs.CMUDP, verbs.UD, at)
	noError(t, id.Connect(verbs.CMParam{Private: []byte("where?")}))
	e := server.event(verbs.CMConnectRequest)
	if len(e.Param.Private) != 180 || !bytes.HasPrefix(e.Param.Private, []byte("where?")) {
		t.Errorf("the request says %q", e.Param.Private)
	}
	noError(t, e.ID.To(y.QP, verbs.QPSInit, verbs.QPSRTR, verbs.QPSRTS))
	noError(t, e.ID.Accept(verbs.CMParam{QPN: y.QPNum(), Private: []byte("here")}))
	r := client.event(verbs.CMEstablished)
	if r.UD == nil || r.UD.QPN != y.QPNum() || r.UD.QKey != 0x01234567 || r.UD.AH.GRH.DGID.Addr() != at.Addr() || len(r.Param.Private) != 136 {
		t.Errorf("the answer says %+v %+v", r.UD, r.Param)
	}
	group := netip.MustParseAddr("239.1.2.3")
	noError(t, id.Join(group, 4711))
	if m := client.event(verbs.CMMulticastJoin); m.Cookie != 4711 || m.UD.QPN != 0xffffff || m.UD.AH.GRH.DGID.Addr() != group {
		t.Errorf("joined: %+v %+v", m, m.UD)
	}
	if err := id.Join(group, 1); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second time: %v", err)
	}
	noError(t, id.Leave(group))
	if err := id.Leave(group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("leaving twice: %v", err)
	}
}

// An identifier takes its events along when it changes its channel.
func TestCMMigration(t *testing.T) {
	f := verbstest.New(t)
	c := newCaller(t, f, "nic0")
	id := c.id(verbs.CMTCP, verbs.RC)
	noError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.2:7"), time.Second))
	second, err := c.NewChannel()
	noError(t, err)
	defer second.Close()
	noError(t, id.Migrate(second))
	e, err := second.Event(t.Context())
	if err != nil || e.Type != verbs.CMAddrResolved || e.ID.Handle() != id.Handle() {
		t.Errorf("on the other channel: %+v, %v", e, err)
	}
	noError(t, id.Destroy())
}

// Each end of a resolution is an event: an address that nothing leads to is one as well.
func TestCMAddressesWithoutAWay(t *testing.T) {
	f := verbstest.New(t, verbstest.WithNICs(1))
	c := newCaller(t, f, "")
	id := c.id(verbs.CMTCP, verbs.RC)
	if err := id.ResolveAddr(netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("[2001:db8::9]:1"), time.Second); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("between address families: %v", err)
	}
	for _, to := range []string{"[fe80::1%lo]:1", "127.0.0.1:1", "[::1]:1"} {
		id = c.id(verbs.CMTCP, verbs.RC)
		noError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(to), time.Second))
		if e := c.event(verbs.CMAddrError); e.Status != -int(syscall.ENETUNREACH) {
			t.Errorf("%s: status %d", to, e.Status)
		}
	}
}
