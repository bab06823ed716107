package attach

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/nic"
	"softroce/wire"
)

// maxMADs is the number of management datagrams of a NIC that may be queued for the connection
// manager. Further ones are dropped; their senders retransmit them.
const maxMADs = 4096

// A cmService runs the connection manager on one goroutine, to which clients, engines and timers
// send functions. The goroutine may wait for an engine; an engine never waits for it.
type cmService struct {
	manager *cm.Manager
	nics    []*cmNIC
	start   time.Time

	mu     sync.Mutex
	queue  []func()
	closed bool
	wake   chan struct{} // has a capacity of one
	ended  chan struct{}
}

// newCMService starts the service. setRules sets what the fault program does to connections.
func newCMService(devices []device, setRules func(*cm.Manager)) (*cmService, error) {
	s := &cmService{start: time.Now(), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	var nics []cm.NIC
	for _, d := range devices {
		n := &cmNIC{device: d, service: s}
		n.refresh()
		s.nics = append(s.nics, n)
		nics = append(nics, n)
	}
	s.manager = cm.NewManager(nics, binary.LittleEndian.Uint64(seed[:]))
	setRules(s.manager)
	for _, n := range s.nics {
		n.engine.Do(func() { n.HandleMADs(n.receive) })
		n.Interface().OnChange(func() { s.post(n.addressesChanged) })
	}
	go s.run()
	return s, nil
}

// do runs f on the manager's goroutine and waits for it. It returns false if the service has ended.
func (s *cmService) do(f func()) bool {
	done := make(chan struct{})
	if !s.post(func() { defer close(done); f() }) {
		return false
	}
	<-done
	return true
}

// post is do without waiting for f.
func (s *cmService) post(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.queue = append(s.queue, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

func (s *cmService) run() {
	defer close(s.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.mu.Lock()
		queue, closed := s.queue, s.closed
		s.queue = nil
		s.mu.Unlock()
		for _, f := range queue {
			s.manager.Advance(s.now())
			f()
		}
		if closed && len(queue) == 0 {
			return
		}
		s.manager.Advance(s.now())
		if next := s.manager.NextDeadline(); next != 0 {
			timer.Reset(time.Duration(max(next-s.now(), 0)))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// now returns the manager's time, which is above 0.
func (s *cmService) now() int64 { return int64(time.Since(s.start)) + 1 }

// removeDevices sends device removal events to the identifiers of all devices.
func (s *cmService) removeDevices() {
	s.do(func() {
		for _, n := range s.nics {
			s.manager.Remove(n)
		}
	})
}

// close ends the service. All sessions must be closed.
func (s *cmService) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	<-s.ended
}

// A cmNIC is a device as the connection manager sees it. It has a copy of the device's properties,
// which is renewed when the interface changes.
type cmNIC struct {
	device
	service *cmService

	guid  uint64
	mtu   uint8
	delay uint8
	addrs []cm.Address
	mads  atomic.Int64 // queued
}

// receive queues a MAD. The device's engine calls it.
func (n *cmNIC) receive(m *nic.MAD) bool {
	s := n.service
	if n.mads.Add(1) > maxMADs {
		n.mads.Add(-1)
		return false
	}
	return s.post(func() {
		n.mads.Add(-1)
		p := &m.Path
		s.manager.Receive(n, cm.Route{Network: p.Network, Src: p.Src, Dst: p.Dst, VLAN: p.VLAN, DstMAC: p.DstMAC, TClass: p.TClass, SL: p.Priority, HopLimit: p.HopLimit,
			FlowLabel: p.FlowLabel, PKey: m.PKey}, m.Data[:])
	})
}

// requesterMAC returns the MAC from which the peer's request for a connection to its queue pair qpn
// came, zeros if the link does not know MACs. ok is false if there was no request.
func (s *cmService) requesterMAC(d device, p *wire.Path, qpn uint32) (mac [6]byte, ok bool) {
	for _, n := range s.nics {
		if n.device == d && qpn != 0 {
			s.do(func() { mac, ok = s.manager.RequesterMAC(n, p.Dst, p.VLAN, qpn) })
		}
	}
	return mac, ok
}

// Send implements cm.Port.
func (n *cmNIC) Send(mad *[cm.MADSize]byte, to *cm.Route) {
	n.SendMAD(&nic.MAD{Data: *mad, PKey: to.PKey, Path: wire.Path{Network: to.Network, Src: to.Src, Dst: to.Dst, VLAN: to.VLAN, DstMAC: to.DstMAC, TClass: to.TClass,
		HopLimit: to.HopLimit, FlowLabel: to.FlowLabel, Priority: to.SL & 7}})
}

// Resolve implements cm.NIC.
func (n *cmNIC) Resolve(r cm.Route, timeout time.Duration, done func(cm.Route, error)) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		p := wire.Path{Network: r.Network, Src: r.Src, Dst: r.Dst, VLAN: r.VLAN, TClass: r.TClass, HopLimit: r.HopLimit}
		err := n.Interface().Resolve(ctx, &p)
		switch {
		case err == nil:
			r.DstMAC = p.DstMAC
		case errors.Is(err, wire.ErrNoRoute):
			err = &Error{syscall.ENETUNREACH, err.Error()}
		case ctx.Err() != nil:
			err = &Error{syscall.ETIMEDOUT, err.Error()}
		default:
			err = &Error{syscall.EHOSTUNREACH, err.Error()}
		}
		n.service.post(func() { done(r, err) })
	}()
}
