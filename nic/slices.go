package nic

import (
	"sync/atomic"
	"syscall"
	"time"

	"softroce/internal/sharelock"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// A NIC may be driven by several engines. Then it has as many slices, Devices with their own part
// of the link, and one of them serves each queue pair: that which wire.SliceOf names, to which the
// link also steers the packets for it. QP 1 belongs to slice 0.
//
//  1. A slice has what the data path changes: transmit slots, timers, congestion control, counters,
//     frames that are kept, turns and doorbells of each context (contextPart). No lock is taken
//     for it.
//  2. What the slices have in common (whole, Context and its objects) is changed by control
//     operations only. The first engine of the Group runs them while all others are between two
//     steps (group.go), and may then use any slice. So a region is not accessed any more when its
//     deregistration returns, and a queue pair that is destroyed has sent its ACKs.
//  3. What the data path of a slice has to change there, which is rare, is passed to the first
//     engine as a control operation: see onControl.
//  4. CQs and SRQs have a lock if queue pairs of several slices use them, which is taken once for
//     the completions that a slice publishes together, and once for each receive.
//  5. A work request may bind a window of type 1 that other slices use. Its completion waits for a
//     control operation, after which they do not use the old binding any more (QP.revoke).

// A Slice is another engine that drives a device, with its part of the link.
type Slice struct {
	Engine *Engine
	Link   wire.Link // the device closes it
}

// checkSlices checks DeviceConfig.Slices.
func (e *Engine) checkSlices(c *DeviceConfig) error {
	if len(c.Slices) == 0 {
		return nil
	}
	if e.group == nil || e.group.engines[0] != e || len(c.Slices) >= len(e.group.engines) {
		return errorf(syscall.EINVAL, "device %s of %d slices: its engine must be the first of a group of as many", c.Name, 1+len(c.Slices))
	}
	for i, s := range c.Slices {
		if s.Engine != e.group.engines[1+i] || s.Link == nil {
			return errorf(syscall.EINVAL, "slice %d of device %s: it needs a link, and engine %d of the group", 1+i, c.Name, 1+i)
		}
	}
	return nil
}

// addSlices adds the slices of d to their engines.
func (d *Device) addSlices(c *DeviceConfig) error {
	d.slices = []*Device{d}
	for i, s := range c.Slices {
		d.slices = append(d.slices, &Device{whole: d.whole, engine: s.Engine, link: s.Link, number: 1 + i})
	}
	for _, s := range d.slices {
		if s.buffers = s.engine.config.Buffers; s.buffers == nil {
			s.buffers = NewFrameBuffers()
		}
		s.lag = s.link.Capabilities().Lag
		s.tx.init(s)
		s.initCongestion(c)
		if f, ok := s.link.(*wire.FaultLink); ok {
			f.SetOwner(s.owner)
		}
		if !s.engine.config.Stepped {
			s.link.OnReady(s.engine.Wake)
		}
	}
	if len(d.slices) > 1 {
		d.completionFaults.mu.Share()
		ios := d.engine.group.ios()
		d.table.Share(ios[:len(d.slices)]...)
	}
	for _, s := range d.slices {
		s.engine.devices = append(s.engine.devices, s)
	}
	return nil
}

// sliceOf returns the slice that serves a queue pair.
func (d *whole) sliceOf(qpn uint32) *Device { return d.slices[wire.SliceOf(qpn, len(d.slices))] }

// Slices returns the number of engines that drive the device.
func (d *Device) Slices() int { return len(d.slices) }

// isPart reports whether d is a slice other than the first, which stands for the NIC.
func (d *Device) isPart() bool { return d.number > 0 }

// onControl calls f, which changes what slices have in common, as a control operation: at once if
// there is one slice.
func (d *whole) onControl(f func()) {
	e := d.slices[0].engine
	switch {
	case len(d.slices) == 1:
		f()
	case e.stepped: // when it next runs such functions
		e.posted = append(e.posted, f)
	default:
		e.post(f)
	}
}

// setAsleep sets the slice's part of the word that tells a client whether engines sleep. The client
// may write it at any time.
func (d *Device) setAsleep(word *uint32, asleep uint32) {
	switch bit := uint32(1) << d.number; {
	case len(d.slices) == 1:
		atomic.StoreUint32(word, asleep)
	case asleep != 0:
		atomic.OrUint32(word, bit)
	default:
		atomic.AndUint32(word, ^bit)
	}
}

// share notes that a queue pair uses its CQs and its SRQ.
func (q *QP) share() {
	if q.sendCQ != nil {
		q.sendCQ.use(q.device)
	}
	if q.recvCQ != nil {
		q.recvCQ.use(q.device)
	}
	if q.srq != nil {
		q.srq.ring.use(q.device)
	}
}

// allBadPKeys returns how many packets had a P_Key that did not match.
func (d *whole) allBadPKeys() (n uint32) {
	for _, s := range d.slices {
		n += uint32(s.counters.Drops[transport.DropPKey])
	}
	return n
}

// completionFaults are the rules for completions of a NIC. Its slices share their counters.
type completionFaults struct {
	fault.Completions
	mu sharelock.Mutex
}

// Fail is fault.Completions.Fail.
func (f *completionFaults) Fail(now int64, w *fault.WorkRequest) *fault.CompletionRule {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Completions.Fail(now, w)
}

// Late is fault.Completions.Late.
func (f *completionFaults) Late(now int64, w *fault.WorkRequest) (time.Duration, *fault.CompletionRule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Completions.Late(now, w)
}

// Refuse is fault.Completions.Refuse.
func (f *completionFaults) Refuse(now int64, a *fault.RemoteAccess) (*fault.CompletionRule, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Completions.Refuse(now, a)
}
