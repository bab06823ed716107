package cm_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"softroce/cm"
)

// A network carries MADs between hosts in virtual time. A host is an agent with one port.
type network struct {
	t        *testing.T
	now      int64
	hosts    map[netip.Addr]*host
	inFlight []flight
	seq      int

	// outcome returns when a MAD arrives, in ns from now, once for each copy; an empty list loses
	// it.
	outcome func(m *datagram) []int64
}

// A datagram is a MAD in the network.
type datagram struct {
	Message cm.Message
	From    netip.Addr
}

type flight struct {
	at   int64
	seq  int
	from netip.Addr
	to   netip.Addr
	mad  [cm.MADSize]byte
}

// A host is an agent and its program, which accepts requests and records events.
type host struct {
	*cm.Agent
	net          *network
	addr         netip.Addr
	guid         uint64
	log          []string
	conns        []*cm.Conn
	accept       bool // accept each request at once
	rejectReason cm.Reason
}

func newNetwork(t *testing.T, n int) (*network, []*host) {
	w := &network{t: t, now: 1, hosts: map[netip.Addr]*host{}}
	w.outcome = func(*datagram) []int64 { return []int64{1000} }
	var hosts []*host
	for i := range n {
		h := &host{net: w, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), guid: 0xf000 + uint64(i), accept: true}
		h.Agent = cm.NewAgent(h, uint64(i))
		w.hosts[h.addr] = h
		hosts = append(hosts, h)
	}
	return w, hosts
}

func (h *host) GUID() uint64 { return h.guid }

func (h *host) Send(mad *[cm.MADSize]byte, to *cm.Route) {
	_, m, err := cm.Parse(mad[:])
	if err != nil {
		h.net.t.Fatalf("%v sent an invalid MAD: %v", h.addr, err)
	}
	for _, d := range h.net.outcome(&datagram{m, h.addr}) {
		h.net.seq++
		h.net.inFlight = append(h.net.inFlight, flight{h.net.now + d, h.net.seq, h.addr, to.Dst, *mad})
	}
}

func (h *host) note(format string, a ...any) { h.log = append(h.log, fmt.Sprintf(format, a...)) }

func (h *host) Request(c *cm.Conn, q *cm.REQ) cm.Reason {
	h.note("request")
	if h.rejectReason != 0 {
		return h.rejectReason
	}
	c.Owner = h
	h.conns = append(h.conns, c)
	if h.accept {
		if err := c.Accept(h.net.now, &cm.REP{LocalQPN: 0x200 + q.LocalQPN}); err != nil {
			h.net.t.Error(err)
		}
	}
	return 0
}

func (h *host) Lookup(c *cm.Conn, q *cm.SIDRREQ) (cm.SIDRStatus, bool) {
	h.note("lookup")
	c.Owner = h
	h.conns = append(h.conns, c)
	return cm.SIDRSuccess, false
}

func (h *host) Event(c *cm.Conn, e *cm.ConnEvent) {
	switch e.Kind {
	case cm.ConnReplied:
		h.note("replied")
		if h.accept {
			c.Ready()
		}
	case cm.ConnRejected:
		h.note("rejected %v", e.Reason)
	case cm.ConnUnreachable:
		h.note("unreachable")
	case cm.ConnEstablished:
		h.note("established")
	case cm.ConnDisconnected:
		h.note("disconnected")
		c.Disconnect(h.net.now)
	case cm.ConnTimewaitExit:
		h.note("timewait exit")
	case cm.ConnSIDRReply:
		h.note("looked up %d", e.SIDR.QPN)
	}
}

func (h *host) connect(to *host, qpn uint32) *cm.Conn {
	q := &cm.REQ{ServiceID: 7, LocalQPN: qpn, RemoteResponseTime: cm.ResponseTime, LocalResponseTime: cm.ResponseTime, MaxCMRetries: cm.MaxRetries}
	q.Primary.ACKTimeout = 17
	c, err := h.Connect(h.net.now, h, cm.Route{Src: h.addr, Dst: to.addr}, q)
	if err != nil {
		h.net.t.Fatal(err)
	}
	c.Owner = h
	return c
}

// run advances the time until no event is due before until; 0 is no bound.
func (w *network) run(until int64) {
	for range 1_000_000 {
		next := int64(0)
		for _, f := range w.inFlight {
			if next == 0 || f.at < next {
				next = f.at
			}
		}
		for _, h := range w.hosts {
			if d := h.NextDeadline(); d != 0 && (next == 0 || d < next) {
				next = d
			}
		}
		if next == 0 || until != 0 && next > until {
			w.now = max(w.now, until)
			return
		}
		w.now = max(w.now, next)
		w.deliver()
		for i := range len(w.hosts) {
			w.hosts[netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})].Expire(w.now)
		}
	}
	w.t.Fatal("the network does not become idle")
}

func (w *network) deliver() {
	slices.SortFunc(w.inFlight, func(a, b flight) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.seq - b.seq
	})
	for len(w.inFlight) > 0 && w.inFlight[0].at <= w.now {
		f := w.inFlight[0]
		w.inFlight = w.inFlight[1:]
		if h := w.hosts[f.to]; h != nil {
			h.Receive(w.now, h, cm.Route{Src: f.to, Dst: f.from}, f.mad[:])
		}
	}
}

// lose drops the first n MADs with an attribute.
func (w *network) lose(a cm.Attribute, n int) {
	w.outcome = func(m *datagram) []int64 {
		if m.Message.Attribute() == a && n > 0 {
			n--
			return nil
		}
		return []int64{1000}
	}
}

func want(t *testing.T, h *host, events ...string) {
	t.Helper()
	if got, want := strings.Join(h.log, ", "), strings.Join(events, ", "); got != want {
		t.Errorf("%v recorded events %q, want %q", h.addr, got, want)
	}
}

func empty(t *testing.T, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		if h.Len() != 0 || h.NextDeadline() != 0 {
			t.Errorf("%v has %d connections left", h.addr, h.Len())
		}
	}
}

func TestConnectionSurvivesTheLossOfEachMessage(t *testing.T) {
	for _, lost := range []cm.Attribute{0, cm.AttrREQ, cm.AttrREP, cm.AttrRTU, cm.AttrDREQ, cm.AttrDREP} {
		for _, byActive := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v lost, ended by the active side: %v", lost, byActive), func(t *testing.T) {
				w, hosts := newNetwork(t, 2)
				a, b := hosts[0], hosts[1]
				w.lose(lost, 3)
				c := a.connect(b, 0x11)
				w.run(60e9)
				want(t, a, "replied")
				want(t, b, "request", "established")
				a.log, b.log = nil, nil
				if !byActive {
					c = b.conns[0]
				}
				if err := c.Disconnect(w.now); err != nil {
					t.Fatal(err)
				}
				w.run(0)
				want(t, a, "disconnected", "timewait exit")
				want(t, b, "disconnected", "timewait exit")
				empty(t, a, b)
			})
		}
	}
}

func TestSilentPeerIsUnreachable(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	sent := 0
	w.outcome = func(*datagram) []int64 { sent++; return nil }
	hosts[0].connect(hosts[1], 0x11)
	w.run(0)
	want(t, hosts[0], "unreachable")
	empty(t, hosts...)
	if sent != 1+cm.MaxRetries {
		t.Errorf("the REQ was sent %d times, want %d", sent, 1+cm.MaxRetries)
	}
	if w.now < 70e9 || w.now > 85e9 {
		t.Errorf("giving up took %d ns", w.now)
	}
}

func TestPeerThatDiesAfterREQIsUnreachable(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	w.lose(cm.AttrRTU, 1000)
	hosts[0].connect(hosts[1], 0x11)
	w.run(10e9)
	w.outcome = func(*datagram) []int64 { return nil }
	w.run(0)
	want(t, hosts[1], "request", "unreachable")
}

func TestMRAExtendsTheWait(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	a, b := hosts[0], hosts[1]
	b.accept = false
	a.connect(b, 0x11)
	w.run(60e9)
	want(t, a)
	want(t, b, "request") // once, however often the REQ arrived
	if err := b.conns[0].Accept(w.now, &cm.REP{LocalQPN: 9}); err != nil {
		t.Fatal(err)
	}
	w.run(w.now + 1e9)
	want(t, a, "replied")
	want(t, b, "request", "established")
}

func TestRejectionsAreReportedWithTheirReason(t *testing.T) {
	t.Run("by the listener", func(t *testing.T) {
		w, hosts := newNetwork(t, 2)
		hosts[1].rejectReason = cm.RejectInvalidService
		hosts[0].connect(hosts[1], 0x11)
		w.run(0)
		want(t, hosts[0], "rejected invalid service ID")
		empty(t, hosts...)
	})
	t.Run("by the program", func(t *testing.T) {
		w, hosts := newNetwork(t, 2)
		hosts[1].accept = false
		hosts[0].connect(hosts[1], 0x11)
		w.run(1e9)
		if err := hosts[1].conns[0].Reject(cm.RejectConsumer, nil, []byte("no")); err != nil {
			t.Fatal(err)
		}
		w.run(0)
		want(t, hosts[0], "rejected consumer defined")
		empty(t, hosts...)
	})
	t.Run("of a REP", func(t *testing.T) {
		w, hosts := newNetwork(t, 2)
		hosts[0].accept = false
		c := hosts[0].connect(hosts[1], 0x11)
		w.run(1e9)
		if err := c.Reject(cm.RejectConsumer, nil, nil); err != nil {
			t.Fatal(err)
		}
		w.run(0)
		want(t, hosts[1], "request", "rejected consumer defined")
		empty(t, hosts...)
	})
	t.Run("of private data that is too long", func(t *testing.T) {
		w, hosts := newNetwork(t, 2)
		hosts[1].accept = false
		hosts[0].connect(hosts[1], 0x11)
		w.run(1e9)
		if err := hosts[1].conns[0].Reject(cm.RejectConsumer, nil, make([]byte, cm.REJPrivate+1)); err != cm.ErrLong {
			t.Error(err)
		}
	})
}

// The death of a program closes each of its connections.
func TestCloseNotifiesThePeerInEveryState(t *testing.T) {
	for _, c := range []struct {
		name   string
		setup  func(a, b *host) *cm.Conn // returns the connection to close
		closer int
		peer   []string
	}{
		{"REQ sent", func(a, b *host) *cm.Conn {
			b.accept = false
			c := a.connect(b, 0x11)
			a.net.run(1e9)
			return c
		}, 0, []string{"request", "rejected timeout"}},
		{"REQ received", func(a, b *host) *cm.Conn {
			b.accept = false
			a.connect(b, 0x11)
			a.net.run(1e9)
			return b.conns[0]
		}, 1, []string{"rejected consumer defined"}},
		{"REP received", func(a, b *host) *cm.Conn {
			a.accept = false
			c := a.connect(b, 0x11)
			a.net.run(1e9)
			return c
		}, 0, []string{"request", "rejected consumer defined"}},
		{"established", func(a, b *host) *cm.Conn {
			c := a.connect(b, 0x11)
			a.net.run(1e9)
			return c
		}, 0, []string{"request", "established", "disconnected", "timewait exit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, hosts := newNetwork(t, 2)
			conn := c.setup(hosts[0], hosts[1])
			conn.Close(w.now)
			w.run(0)
			want(t, hosts[1-c.closer], c.peer...)
			empty(t, hosts...)
		})
	}
}

func TestSimultaneousDisconnectEndsBothSides(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	c := hosts[0].connect(hosts[1], 0x11)
	w.run(1e9)
	c.Disconnect(w.now)
	hosts[1].conns[0].Disconnect(w.now)
	w.run(0)
	want(t, hosts[0], "replied", "disconnected", "timewait exit")
	want(t, hosts[1], "request", "established", "disconnected", "timewait exit")
	empty(t, hosts...)
}

// A host that restarts and uses the same queue pair is rejected once; then it can connect.
func TestStaleConnectionIsRejectedOnce(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	a, b := hosts[0], hosts[1]
	a.connect(b, 0x11)
	w.run(1e9)
	a.Agent = cm.NewAgent(a, 99) // reboot
	a.log, b.log = nil, nil
	a.connect(b, 0x11)
	w.run(20e9)
	want(t, a, "rejected stale connection")
	want(t, b, "disconnected", "timewait exit")
	a.connect(b, 0x11)
	w.run(w.now + 10e9)
	want(t, a, "rejected stale connection", "replied")
}

// Two NICs of one MAC have one CA GUID unless it is configured, and both number their queue pairs
// from 0x11 and their connections alike.
func TestNICsOfOneGUIDConnectWithTheSameNumbers(t *testing.T) {
	w, hosts := newNetwork(t, 3)
	a, b, server := hosts[0], hosts[1], hosts[2]
	b.guid, b.Agent = a.guid, cm.NewAgent(b, 0) // as a's
	server.accept = false
	x, y := a.connect(server, 0x11), b.connect(server, 0x11)
	if x.LocalID() != y.LocalID() {
		t.Fatalf("communication IDs %#x and %#x, want equal ones", x.LocalID(), y.LocalID())
	}
	w.run(1e9)
	for _, c := range server.conns {
		if err := c.Accept(w.now, &cm.REP{LocalQPN: 0x22}); err != nil {
			t.Fatal(err)
		}
	}
	w.run(w.now + 10e9)
	want(t, a, "replied")
	want(t, b, "replied")
	want(t, server, "request", "request", "established", "established")
}

func TestDREQWithoutConnectionGetsDREP(t *testing.T) {
	w, hosts := newNetwork(t, 2)
	var got []string
	w.outcome = func(m *datagram) []int64 {
		got = append(got, fmt.Sprint(m.From, " ", m.Message.Attribute()))
		return []int64{1}
	}
	var mad [cm.MADSize]byte
	cm.Put(&mad, 5, 0, &cm.DREQ{LocalID: 1, RemoteID: 2, RemoteQPN: 3})
	hosts[0].Receive(w.now, hosts[0], cm.Route{Src: hosts[0].addr, Dst: hosts[1].addr}, mad[:])
	if len(got) != 1 || got[0] != "10.0.0.1 DREP" {
		t.Errorf("replies %v, want a DREP", got)
	}
}

func TestSIDRRequestIsAnsweredDespiteLoss(t *testing.T) {
	for _, lost := range []cm.Attribute{0, cm.AttrSIDRREQ, cm.AttrSIDRREP} {
		t.Run(lost.String(), func(t *testing.T) {
			w, hosts := newNetwork(t, 2)
			w.lose(lost, 1)
			c, err := hosts[0].RequestSIDR(w.now, hosts[0], cm.Route{Src: hosts[0].addr, Dst: hosts[1].addr}, &cm.SIDRREQ{ServiceID: 7})
			if err != nil {
				t.Fatal(err)
			}
			c.Owner = hosts[0]
			w.run(6e9)
			want(t, hosts[1], "lookup")
			if err := hosts[1].conns[0].ReplySIDR(w.now, &cm.SIDRREP{QPN: 42}); err != nil {
				t.Fatal(err)
			}
			w.run(0)
			want(t, hosts[0], "looked up 42")
			empty(t, hosts...)
		})
	}
}

// Under loss, duplication and reordering each connection is established once and both sides see its
// end, or the active side sees that the peer is unreachable. At the end no connection is left.
func TestAgentUnderLossDuplicationAndReordering(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		w, hosts := newNetwork(t, 3)
		w.outcome = func(*datagram) (at []int64) {
			for at == nil && r.IntN(100) >= 30 || r.IntN(100) < 20 {
				at = append(at, 1000+r.Int64N(3e9))
			}
			return at
		}
		const n = 20
		for i := range n {
			from, to := r.IntN(3), r.IntN(3)
			hosts[from].connect(hosts[to], uint32(0x1000+i))
			w.run(w.now + r.Int64N(2e9) + 1)
		}
		w.run(w.now + 200e9)
		for _, h := range hosts {
			for _, c := range h.conns {
				if c.State() == cm.StateEstablished && r.IntN(2) == 0 {
					c.Disconnect(w.now)
				} else {
					c.Close(w.now)
				}
			}
		}
		w.run(0)
		made, gone, end := 0, 0, 0
		for _, h := range hosts {
			for _, e := range h.log {
				switch e {
				case "replied":
					made++
				case "unreachable":
					gone++
				case "disconnected":
					end++
				}
			}
		}
		if made == 0 {
			t.Errorf("seed %d: no connection was made, %d unreachable", seed, gone)
		}
		empty(t, hosts...)
		if t.Failed() {
			t.Fatalf("failed with seed %d", seed)
		}
	}
}

// Arbitrary messages neither leave connections behind nor crash the agent.
func FuzzAgent(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, script []byte) {
		w, hosts := newNetwork(t, 2)
		a, b := hosts[0], hosts[1]
		c := a.connect(b, 0x11)
		w.run(1e9)
		ids := []uint32{c.LocalID(), b.conns[0].LocalID(), 0, 1}
		id := func(n byte) uint32 { return ids[n%4] }
		for len(script) >= 4 {
			s := script[:4]
			script = script[4:]
			var m cm.Message
			switch s[0] % 12 {
			case 0:
				m = &cm.REQ{LocalID: id(s[1]), LocalQPN: uint32(s[2]), LocalGUID: 0xf000 + uint64(s[3]%3), LocalResponseTime: 3}
			case 1:
				m = &cm.REP{LocalID: id(s[1]), RemoteID: id(s[2]), LocalQPN: uint32(s[3]), LocalGUID: 0xf000 + uint64(s[3]%3)}
			case 2:
				m = &cm.RTU{LocalID: id(s[1]), RemoteID: id(s[2])}
			case 3:
				m = &cm.REJ{LocalID: id(s[1]), RemoteID: id(s[2]), Reason: cm.Reason(s[3]), InfoLength: 8}
				binary.BigEndian.PutUint64(m.(*cm.REJ).Info[:], 0xf000+uint64(s[3]%3))
			case 4:
				m = &cm.MRA{LocalID: id(s[1]), RemoteID: id(s[2]), About: s[3] & 3, ServiceTimeout: s[3] >> 3}
			case 5:
				m = &cm.DREQ{LocalID: id(s[1]), RemoteID: id(s[2]), RemoteQPN: uint32(s[3])}
			case 6:
				m = &cm.DREP{LocalID: id(s[1]), RemoteID: id(s[2])}
			case 7:
				m = &cm.SIDRREQ{RequestID: id(s[1])}
			case 8:
				m = &cm.SIDRREP{RequestID: id(s[1])}
			case 9:
				m = &cm.LAP{LocalID: id(s[1]), RemoteID: id(s[2])}
			case 10:
				w.run(w.now + int64(s[1])<<28)
				continue
			case 11:
				a.connect(b, uint32(s[1]))
				continue
			}
			var mad [cm.MADSize]byte
			cm.Put(&mad, 1, 0, m)
			from, to := a, b
			if s[0]&0x80 != 0 {
				from, to = b, a
			}
			to.Receive(w.now, to, cm.Route{Src: to.addr, Dst: from.addr}, mad[:])
		}
		for _, h := range hosts {
			for _, c := range h.conns {
				c.Close(w.now)
			}
		}
		w.run(w.now + 300e9)
	})
}
