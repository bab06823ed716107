package nic_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/nic"
	"softroce/wire"
)

// A descriptorLink is a link whose descriptor is an eventfd.
type descriptorLink struct {
	wire.Link
	opened []int
	fd     atomic.Int32 // the last one
	read   atomic.Int32 // how often Receive found the eventfd readable
	ready  func()
}

func (l *descriptorLink) AppendFDs(fds []unix.PollFd) []unix.PollFd {
	return append(fds, unix.PollFd{Fd: l.fd.Load(), Events: unix.POLLIN})
}

func (l *descriptorLink) OnReady(f func()) { l.ready = f }

func (l *descriptorLink) Receive(int64, []wire.RxFrame) (int, error) {
	if n, _ := unix.Read(int(l.fd.Load()), make([]byte, 8)); n == 8 {
		l.read.Add(1)
	}
	return 0, nil
}

func newDescriptorLink(t *testing.T, e *nic.Engine) *descriptorLink {
	l := &descriptorLink{Link: wire.NewFabric().NewLink(e)}
	t.Cleanup(func() {
		for _, fd := range l.opened {
			unix.Close(fd)
		}
	})
	l.open(t)
	return l
}

// open gives the link an eventfd. An older one stays open: the engine may wait for it.
func (l *descriptorLink) open(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	check(t, err)
	l.opened = append(l.opened, fd)
	l.fd.Store(int32(fd))
}

// ring makes the descriptor readable.
func (l *descriptorLink) ring() { unix.Write(int(l.fd.Load()), []byte{7: 1}) }

// eventually waits until ok.
func eventually(t *testing.T, claim string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout: ", claim)
		}
	}
}

// awaitSleep waits until an engine sleeps, and returns how many steps it has taken.
func awaitSleep(t *testing.T, e *nic.Engine) (steps uint64) {
	t.Helper()
	eventually(t, "the engine sleeps", func() bool {
		steps = e.Counters().Steps
		time.Sleep(50 * time.Millisecond)
		return e.Counters().Steps == steps
	})
	return steps
}

// A link wakes its engine by a descriptor, by one that replaces it, and by the function for frames
// that no descriptor shows.
func TestLinkWithDescriptorWakesEngine(t *testing.T) {
	e, err := nic.NewEngine(nic.EngineConfig{})
	check(t, err)
	l := newDescriptorLink(t, e)
	_, err = e.AddDevice(nic.DeviceConfig{Name: "a", Link: l, Iface: descriptorIface()})
	check(t, err)
	runAll(t, e)
	for i := range int32(3) {
		awaitSleep(t, e)
		if i > 0 {
			l.open(t)
			l.ready()
			awaitSleep(t, e)
		}
		l.ring()
		eventually(t, "the descriptor wakes the engine", func() bool { return l.read.Load() == i+1 })
	}
	steps := awaitSleep(t, e)
	l.ready()
	eventually(t, "the function wakes the engine", func() bool { return e.Counters().Steps > steps })
}

// An engine that sleeps when it gets a slice of a device waits for its link, too.
func TestEngineThatSleepsWaitsForNewLink(t *testing.T) {
	start := time.Now()
	var engines []*nic.Engine
	for range 2 {
		e, err := nic.NewEngine(nic.EngineConfig{Clock: func() int64 { return int64(time.Since(start)) + 1 }})
		check(t, err)
		engines = append(engines, e)
	}
	nic.NewGroup(engines...)
	runAll(t, engines...)
	awaitSleep(t, engines[1])
	l := newDescriptorLink(t, engines[1])
	c := nic.DeviceConfig{Name: "a", Link: newDescriptorLink(t, engines[0]), Iface: descriptorIface(),
		Slices: []nic.Slice{{Engine: engines[1], Link: l}}}
	engines[0].Do(func() {
		_, err := engines[0].AddDevice(c)
		check(t, err)
	})
	awaitSleep(t, engines[1])
	l.ring()
	eventually(t, "the descriptor wakes the engine", func() bool { return l.read.Load() == 1 })
}

func descriptorIface() wire.Interface {
	return wire.StaticInterface("", [6]byte{2, 0, 0, 0, 0, 1}, 4200)
}

// runAll runs engines until the test ends.
func runAll(t *testing.T, engines ...*nic.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	returned := make(chan error, len(engines))
	for _, e := range engines {
		go func() { returned <- e.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range engines {
			check(t, <-returned)
		}
		for _, e := range engines {
			check(t, e.Close())
		}
	})
}
