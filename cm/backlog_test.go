package cm_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"softroce/cm"
	"softroce/internal/ib"
)

// A fakeNIC is the NIC of a server. It has 10.0.0.1, also in VLAN 7.
type fakeNIC struct {
	sent []cm.Message
	to   []cm.Route
}

var serverAddr = netip.MustParseAddr("10.0.0.1")

func (n *fakeNIC) Send(mad *[cm.MADSize]byte, to *cm.Route) {
	_, m, err := cm.Parse(mad[:])
	if err != nil {
		panic(err)
	}
	n.sent, n.to = append(n.sent, m), append(n.to, *to)
}

func (n *fakeNIC) GUID() uint64 { return 1 }
func (n *fakeNIC) Name() string { return "nic0" }
func (n *fakeNIC) Addresses() []cm.Address {
	p := netip.PrefixFrom(serverAddr, 24)
	return []cm.Address{{Prefix: p, GIDIndex: 1, Netdev: "eth0"}, {Prefix: p, VLAN: 7, GIDIndex: 4, Netdev: "eth0.7"}}
}
func (n *fakeNIC) Up() bool                     { return true }
func (n *fakeNIC) MTU() uint8                   { return 5 }
func (n *fakeNIC) ACKDelay() uint8              { return 15 }
func (n *fakeNIC) PKey() uint16                 { return 0xffff }
func (n *fakeNIC) PKeyIndex(uint16) (int, bool) { return 0, true }
func (n *fakeNIC) Owns(uint32, cm.Owner) bool   { return true }
func (n *fakeNIC) Resolve(r cm.Route, _ time.Duration, done func(cm.Route, error)) {
	r.DstMAC[5] = 9
	done(r, nil)
}

// A server is a program with a listener on port 7 of a fakeNIC.
type server struct {
	*cm.Manager
	t       *testing.T
	nic     *fakeNIC
	session *cm.Session
	ch      *cm.Channel
	signals int // that the program has not consumed
	now     int64
}

func newServer(t *testing.T, ps cm.PortSpace, qpType ib.QPType, at string, backlog int) *server {
	t.Helper()
	s := &server{t: t, nic: &fakeNIC{}, now: 1}
	s.Manager = cm.NewManager([]cm.NIC{s.nic}, 1)
	s.Advance(s.now)
	var err error
	if s.session, err = s.Open(cm.Owner{Privileged: true}, ""); err != nil {
		t.Fatal(err)
	}
	if s.ch, err = s.session.NewChannel(func() { s.signals++ }); err != nil {
		t.Fatal(err)
	}
	l, err := s.session.NewID(s.ch, ps, qpType)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(netip.MustParseAddrPort(at)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(backlog); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) advance(d time.Duration) {
	s.now += int64(d)
	s.Advance(s.now)
}

// A sender sends messages to the server.
type sender struct {
	addr netip.Addr
	mac  byte
	vlan uint16
}

func (s *server) receive(from sender, m cm.Message) {
	var mad [cm.MADSize]byte
	cm.Put(&mad, 1, 0, m)
	back := cm.Route{Src: serverAddr, Dst: from.addr, VLAN: from.vlan, HopLimit: 64, PKey: 0xffff}
	if from.mac != 0 {
		back.DstMAC = [6]byte{2, 5: from.mac}
	}
	s.Receive(s.nic, back, mad[:])
}

// request sends a REQ for port 7.
func (s *server) request(from sender, id uint32) {
	q := &cm.REQ{ServiceID: cm.ServiceID(cm.PortSpaceTCP, 7), LocalID: id, LocalGUID: 77, LocalQPN: id & 0xffffff,
		RemoteResponseTime: cm.ResponseTime, LocalResponseTime: cm.ResponseTime, PathMTU: 3, MaxCMRetries: cm.MaxRetries, PKey: 0xffff}
	q.Primary.LocalGID, q.Primary.RemoteGID = from.addr.As16(), serverAddr.As16()
	h := cm.IPHeader{SrcPort: 1, Src: from.addr, Dst: serverAddr}
	h.Put(q.Private[:])
	s.receive(from, q)
}

// lastREP returns the last REP that the server sent.
func (s *server) lastREP() (last *cm.REP) {
	for _, m := range s.nic.sent {
		if p, ok := m.(*cm.REP); ok {
			last = p
		}
	}
	return last
}

// next returns the next event if the program is notified of one.
func (s *server) next() *cm.Event {
	if s.signals == 0 {
		return nil
	}
	s.signals--
	return s.ch.Next()
}

func peerOf(id *cm.ID) netip.Addr {
	_, dst := id.Addresses()
	return dst.Addr()
}

// forged returns an address of a flood's sender.
func forged(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }

// A flood of requests neither keeps a client out, whose only REQ arrives in between, nor makes the
// server's state grow, whether the program is slower than the flood or accepts every request.
func TestFloodOfRequestsDoesNotKeepClientsOut(t *testing.T) {
	client := netip.MustParseAddr("10.0.0.2")
	for _, flood := range []struct {
		name    string
		sources int
		macs    bool // the link knows them
	}{{"from one address", 1, false}, {"from 20 addresses", 20, false}, {"from forged addresses at one MAC", 60000, true}} {
		for _, program := range []struct {
			name   string
			period int // requests that arrive while the program handles one
		}{{"slower program", 50}, {"faster program", 1}} {
			t.Run(flood.name+", "+program.name, func(t *testing.T) {
				const n = 20000 // 10 s
				s := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "0.0.0.0:7", 128)
				established := false
				for i := range n {
					from := sender{addr: forged(i % flood.sources)}
					if flood.macs {
						from.mac = 66
					}
					s.request(from, uint32(i+1000))
					if i == n/4 {
						s.request(sender{addr: client, mac: byte(from.mac / 2)}, 1)
					}
					s.advance(time.Second / 2000)
					if i%program.period != 0 {
						continue
					}
					e := s.next()
					for ; e != nil && e.Type != cm.EventConnectRequest; e = s.next() {
						switch e.Type {
						case cm.EventUnreachable:
							e.ID.Destroy()
						case cm.EventEstablished:
							established = established || peerOf(e.ID) == client
						}
					}
					if e == nil {
						continue
					}
					if err := e.ID.Accept(&cm.ConnParam{QPN: uint32(i + 0x100)}); err != nil {
						t.Fatal(err)
					}
					if peerOf(e.ID) == client {
						s.receive(sender{addr: client, mac: byte(from.mac / 2)}, &cm.RTU{LocalID: 1, RemoteID: s.lastREP().LocalID})
					}
					s.nic.sent, s.nic.to = nil, nil
				}
				for e := s.next(); e != nil; e = s.next() {
					established = established || e.Type == cm.EventEstablished
				}
				if !established {
					t.Error("the client is not connected")
				}
				var listing cm.Listing
				listing.Add(s.Manager, math.MaxInt)
				if ids := len(listing.IDs()); ids > 1+128+cm.MaxIDs/2+1 {
					t.Errorf("%d identifiers are left", ids)
				}
			})
		}
	}
}

// A request whose sender gave up makes room for another of the same sender. The program receives
// those that it was notified of.
func TestRequestsOfSendersThatGaveUpMakeRoom(t *testing.T) {
	from := sender{addr: netip.MustParseAddr("10.0.0.2")}
	ids := func(s *server) (l []uint32) {
		for e := s.next(); e != nil; e = s.next() {
			if e.Type == cm.EventConnectRequest {
				l = append(l, e.Conn.QPN)
			}
		}
		return l
	}
	t.Run("after their time", func(t *testing.T) {
		s := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "0.0.0.0:7", 2)
		s.request(from, 1)
		s.advance(70 * time.Second)
		s.request(from, 2)
		s.request(from, 3) // no room: the first may still wait
		s.advance(10 * time.Second)
		s.request(from, 4)
		if got := fmt.Sprint(ids(s)); got != "[2 4]" {
			t.Errorf("the program received requests %v, want 2 and 4", got)
		}
	})
	t.Run("by a REJ", func(t *testing.T) {
		s := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "0.0.0.0:7", 2)
		gone := &cm.REJ{LocalID: 1, About: cm.AboutOther, Reason: cm.RejectTimeout, InfoLength: 8}
		binary.BigEndian.PutUint64(gone.Info[:], 77)
		s.request(from, 1)
		s.request(from, 2)
		s.receive(from, gone)
		s.request(from, 3)
		if got := fmt.Sprint(ids(s)); got != "[2 3]" {
			t.Errorf("the program received requests %v, want 2 and 3", got)
		}
		s.request(from, 4)
		gone.LocalID = 4
		s.receive(from, gone)
		if e := s.next(); e == nil || e.Type != cm.EventConnectRequest {
			t.Errorf("the program was notified and received %+v", e)
		}
		if e := s.next(); e == nil || e.Type != cm.EventRejected || e.Status != int(cm.RejectTimeout) {
			t.Errorf("after the request came %+v", e)
		}
	})
}

// A program may guess the handle of a request, and answer it before it receives the event.
func TestAnswerBeforeTheEventIsReceived(t *testing.T) {
	from := sender{addr: netip.MustParseAddr("10.0.0.2")}
	for _, c := range []struct {
		name   string
		answer func(s *server, id *cm.ID) error
	}{
		{"accept", func(s *server, id *cm.ID) error { return id.Accept(&cm.ConnParam{QPN: 5}) }},
		{"accept and establish", func(s *server, id *cm.ID) error {
			err := id.Accept(&cm.ConnParam{QPN: 5})
			s.receive(from, &cm.RTU{LocalID: 1, RemoteID: s.lastREP().LocalID})
			return err
		}},
		{"reject", func(s *server, id *cm.ID) error { return id.Reject(cm.RejectConsumer, nil) }},
		{"destroy", func(s *server, id *cm.ID) error { id.Destroy(); return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "0.0.0.0:7", 2)
			s.request(from, 1)
			id, err := s.session.ID(2) // the listener is 1
			if err != nil {
				t.Fatal(err)
			}
			if err := c.answer(s, id); err != nil {
				t.Fatal(err)
			}
			for s.next() != nil {
			}
			for i := range uint32(4) { // there is room for two again
				s.request(from, 10+i)
			}
			n := 0
			for e := s.next(); e != nil; e = s.next() {
				n++
			}
			if n != 2 {
				t.Errorf("the program received %d further requests, want 2", n)
			}
		})
	}
}

// The replies to SIDR requests, which are kept for repetitions, are bounded.
func TestRememberedSIDRRepliesAreBounded(t *testing.T) {
	s := newServer(t, cm.PortSpaceUDP, ib.QPTypeUD, "0.0.0.0:7", 0)
	for i := range 20000 {
		q := &cm.SIDRREQ{RequestID: uint32(i), ServiceID: cm.ServiceID(cm.PortSpaceUDP, 7), PKey: 0xffff}
		h := cm.IPHeader{SrcPort: 1, Src: forged(i), Dst: serverAddr}
		h.Put(q.Private[:])
		s.receive(sender{addr: forged(i)}, q)
		e := s.next()
		if err := e.ID.Accept(&cm.ConnParam{QPN: 5}); err != nil {
			t.Fatal(err)
		}
		e.ID.Destroy()
	}
	if n := s.Connections(); n > 4096 {
		t.Errorf("%d SIDR requests are remembered", n)
	}
	s.advance(time.Minute)
	if n := s.Connections(); n != 0 {
		t.Errorf("%d SIDR requests are left", n)
	}
}

// An identifier that is bound to an address of a VLAN sends tagged messages, and a listener accepts
// those of its VLAN.
func TestAddressesOfVLANs(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	s := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "0.0.0.0:7", 0)
	s.request(sender{addr: peer, vlan: 7}, 1)
	e := s.next()
	if e == nil || e.ID.Netdev() != "eth0.7" {
		t.Fatalf("event %+v", e)
	}
	if p, _ := e.ID.Path(); p.SGIDIndex != 4 {
		t.Errorf("the path has SGID index %d, want 4", p.SGIDIndex)
	}
	if err := e.ID.Accept(&cm.ConnParam{QPN: 5}); err != nil || s.nic.to[len(s.nic.to)-1].VLAN != 7 {
		t.Errorf("the REP left to %+v: %v", s.nic.to, err)
	}
	s.receive(sender{addr: peer}, &cm.RTU{LocalID: 1, RemoteID: s.lastREP().LocalID})
	if e := s.next(); e != nil {
		t.Errorf("an untagged RTU caused %v", e.Type)
	}

	bound := newServer(t, cm.PortSpaceTCP, ib.QPTypeRC, "10.0.0.1:7", 0) // the first of this address is untagged
	bound.request(sender{addr: peer, vlan: 7}, 1)
	if e := bound.next(); e != nil {
		t.Errorf("a listener at an untagged address received %v from a VLAN", e.Type)
	}
	bound.request(sender{addr: peer}, 1)
	if e := bound.next(); e == nil {
		t.Error("a listener at an untagged address received nothing")
	}
}
