package nic

import (
	"slices"
	"syscall"

	"softroce/internal/ib"
)

// Fire raises an event, with what belongs to it: a port that is in error is down, a queue pair or
// completion queue that is in error stops. number is that of the queue pair, or the ID of the
// completion queue or SRQ, that the event is about, and 0 for an event of the port or the device.
// Errors are EINVAL and ENOENT.
func (d *Device) Fire(t ib.EventType, number uint32) error {
	target := eventTarget(t)
	switch {
	case target == nil:
		return errorf(syscall.EINVAL, "%v is not an event", t)
	case target.kind != "" && number == 0:
		return errorf(syscall.EINVAL, "%v needs the number of a %s", t, target.kind)
	case target.kind == "" && number != 0:
		return errorf(syscall.EINVAL, "%v is an event of the NIC, not of object %d", t, number)
	case !target.fire(d, t, number):
		return errorf(syscall.ENOENT, "NIC %s has no %s %d", d.name, target.kind, number)
	}
	return nil
}

// A target is what events are about.
type target struct {
	kind string // "" for the NIC
	fire func(d *Device, t ib.EventType, number uint32) (found bool)
}

func eventTarget(t ib.EventType) *target {
	switch t {
	case ib.EventCQErr:
		return &target{"completion queue", (*Device).fireCQ}
	case ib.EventSRQErr, ib.EventSRQLimitReached:
		return &target{"SRQ", (*Device).fireSRQ}
	case ib.EventQPFatal, ib.EventQPReqErr, ib.EventQPAccessErr, ib.EventCommEst, ib.EventSQDrained, ib.EventPathMig,
		ib.EventPathMigErr, ib.EventQPLastWQEReached:
		return &target{"queue pair", (*Device).fireQP}
	case ib.EventDeviceFatal, ib.EventPortActive, ib.EventPortErr, ib.EventLIDChange, ib.EventPKeyChange, ib.EventSMChange,
		ib.EventClientReregister, ib.EventGIDChange:
		return &target{"", (*Device).fireNIC}
	}
	return nil
}

func (d *Device) fireNIC(t ib.EventType, _ uint32) bool {
	switch t {
	case ib.EventPortErr, ib.EventPortActive:
		d.SetLink(t == ib.EventPortActive)
	case ib.EventDeviceFatal:
		for _, c := range slices.Clone(d.contexts) { // a client that breaks its rings loses its context
			c.event(Event{Type: t})
			for _, q := range slices.Clone(c.qps) {
				// A queue pair that is in RESET cannot fail, and stays.
				c.ModifyQP(q, &QPAttr{QPAttr: ib.QPAttr{State: ib.QPSErr}}, ib.QPMaskState)
			}
		}
	default:
		d.broadcast(t)
	}
	return true
}

func (d *Device) fireQP(t ib.EventType, qpn uint32) bool {
	for _, c := range d.contexts {
		for _, q := range c.qps {
			if q.qpn != qpn {
				continue
			}
			fails := t == ib.EventQPFatal || t == ib.EventQPReqErr || t == ib.EventQPAccessErr
			if s := q.t.State(); fails && s != ib.QPSReset && s != ib.QPSErr {
				q.failWith(t)
			} else {
				c.event(Event{Type: t, QP: q})
			}
			return true
		}
	}
	return false
}

func (d *Device) fireCQ(_ ib.EventType, id uint32) bool {
	for _, c := range d.contexts {
		for _, q := range c.cqs {
			if q.id == id {
				q.overrun = true // it takes no more completions
				q.fail()
				return true
			}
		}
	}
	return false
}

func (d *Device) fireSRQ(t ib.EventType, id uint32) bool {
	for _, c := range d.contexts {
		for _, s := range c.srqs {
			if s.id != id {
				continue
			}
			if t == ib.EventSRQLimitReached {
				s.ring.limit = 0
				c.event(Event{Type: t, SRQ: s})
			} else {
				s.fail()
			}
			return true
		}
	}
	return false
}
