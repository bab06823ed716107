package attach

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/nic"
	"softroce/wire"
)

// maxMADs is how many management datagrams may wait for the connection manager. Further ones are dropped; their
// senders repeat them.
const maxMADs = 4096

// A cmService runs the connection manager: one goroutine that clients, engines and timers send their affairs to. Engines
// never wait for it; it may wait for them.
type cmService struct {
	manager *cm.Manager
	nics    []*cmNIC
	start   time.Time
	mads    atomic.Int64 // that wait

	mu     sync.Mutex
	queue  []func()
	closed bool
	wake   chan struct{} // has room for one
	ended  chan struct{}
}

func newCMService(devices []device) (*cmService, error) {
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
	for _, n := range s.nics {
		n.engine.Do(func() { n.HandleMADs(n.receive) })
		n.Interface().OnChange(func() { s.post(n.addressesChanged) })
	}
	go s.run()
	return s, nil
}

// do runs f in the manager's goroutine and waits for it; false where the service has ended.
func (s *cmService) do(f func()) bool {
	done := make(chan struct{})
	if !s.post(func() { defer close(done); f() }) {
		return false
	}
	<-done
	return true
}

// post is do without waiting.
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

// now is the time of the manager, above 0.
func (s *cmService) now() int64 { return int64(time.Since(s.start)) + 1 }

// remove tells programs that their devices go away.
func (s *cmService) removeDevices() {
	s.do(func() {
		for _, n := range s.nics {
			s.manager.Remove(n)
		}
	})
}

// close ends the service. Its sessions have ended.
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

// A cmNIC is a device as the connection manager sees it. What it has of the device is a copy, renewed
// when the interface changes.
type cmNIC struct {
	device
	service *cmService

	guid  uint64
	mtu   uint8
	delay uint8
	gids  []nic.GIDEntry
	addrs []netip.Prefix
}

// receive is called by the device's engine.
func (n *cmNIC) receive(m *nic.MAD) bool {
	s := n.service
	if s.mads.Add(1) > maxMADs {
		s.mads.Add(-1)
		return false
	}
	return s.post(func() {
		s.mads.Add(-1)
		p := &m.Path
		s.manager.Receive(n, cm.Route{Src: p.Src, Dst: p.Dst, DstMAC: p.DstMAC, TClass: p.TClass, HopLimit: p.HopLimit,
			FlowLabel: p.FlowLabel, PKey: m.PKey}, m.Data[:])
	})
}

// Send implements cm.Port.
func (n *cmNIC) Send(mad *[cm.MADSize]byte, to *cm.Route) {
	n.SendMAD(&nic.MAD{Data: *mad, PKey: to.PKey, Path: wire.Path{Src: to.Src, Dst: to.Dst, DstMAC: to.DstMAC, TClass: to.TClass,
		HopLimit: to.HopLimit, FlowLabel: to.FlowLabel}})
}

// Resolve implements cm.NIC.
func (n *cmNIC) Resolve(r cm.Route, timeout time.Duration, done func(cm.Route, error)) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		p := wire.Path{Src: r.Src, Dst: r.Dst, TClass: r.TClass, HopLimit: r.HopLimit}
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
