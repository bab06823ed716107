package nic

import (
	"fmt"
	"slices"
	"syscall"

	"softroce/internal/ib"
	"softroce/wire/fault"
)

// Fire raises an event, with what belongs to it: a port that is in error is down, a queue pair or
// completion queue that is in error stops. number is that of the queue pair, or the ID of the
// completion queue or SRQ, that the event is about; of an event of a port that of the port, where 0
// is port 1; and 0 for an event of the device.
// Errors are EINVAL, ENOENT, and ENETDOWN for PORT_ACTIVE of a port whose interface is down.
func (d *Device) Fire(t ib.EventType, number uint32) error {
	target := eventTarget(t)
	switch {
	case target == nil:
		return errorf(syscall.EINVAL, "%v is not an event", t)
	case target.kind != "" && target.kind != portKind && number == 0:
		return errorf(syscall.EINVAL, "%v needs the number of a %s", t, target.kind)
	case target.kind == portKind && int(number) > d.identity.Ports:
		return d.checkPort(int(number))
	case t == ib.EventPortActive && number <= 1 && !d.iface.Up():
		return errorf(syscall.ENETDOWN, "port 1 of NIC %s stays down, as interface %s does", d.name, d.iface.Name())
	case target.kind == "" && number != 0:
		return errorf(syscall.EINVAL, "%v is an event of the NIC, not of object %d", t, number)
	case !target.fire(d, t, number):
		return errorf(syscall.ENOENT, "NIC %s has no %s %d", d.name, target.kind, number)
	}
	text := fmt.Sprintf("event %v raised", t)
	if number != 0 {
		text += fmt.Sprintf(" for %s %#x", target.kind, number)
	}
	d.Note(&fault.Note{NoRule: true, Text: text})
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
	case ib.EventDeviceFatal:
		return &target{"", (*Device).fireNIC}
	case ib.EventPortActive, ib.EventPortErr, ib.EventLIDChange, ib.EventPKeyChange, ib.EventSMChange,
		ib.EventClientReregister, ib.EventGIDChange:
		return &target{portKind, (*Device).firePort}
	}
	return nil
}

// portKind is what events of a port are about.
const portKind = "port"

func (d *Device) firePort(t ib.EventType, number uint32) bool {
	port := max(1, int(number))
	if up := t == ib.EventPortActive; up || t == ib.EventPortErr {
		was := d.portIsUp(port)
		if err := d.SetPort(port, up); err != nil {
			return false
		}
		if was != up {
			return true // the change has raised the event
		}
	}
	d.broadcastPort(t, port)
	return true
}

// portIsUp reports whether a port that the device has is ACTIVE.
func (d *Device) portIsUp(port int) bool {
	if port == 1 {
		return d.up
	}
	return d.secondUp
}

func (d *Device) fireNIC(ib.EventType, uint32) bool {
	d.NotifyFatal()
	for _, c := range d.contexts {
		for _, q := range c.qps {
			// It fails only for a queue pair in RESET, which stays there.
			c.ModifyQP(q, &QPAttr{QPAttr: ib.QPAttr{State: ib.QPSErr}}, ib.QPMaskState)
		}
	}
	return true
}

func (d *Device) fireQP(t ib.EventType, qpn uint32) bool {
	q := find(d, func(c *Context) []*QP { return c.qps }, func(q *QP) bool { return q.qpn == qpn })
	if q == nil {
		return false
	}
	fails := t == ib.EventQPFatal || t == ib.EventQPReqErr || t == ib.EventQPAccessErr
	if s := q.t.State(); fails && s != ib.QPSReset && s != ib.QPSErr {
		q.failWith(t)
	} else {
		q.ctx.event(Event{Type: t, QP: q})
	}
	return true
}

func (d *Device) fireCQ(_ ib.EventType, id uint32) bool {
	q := find(d, func(c *Context) []*CQ { return c.cqs }, func(q *CQ) bool { return q.id == id })
	if q == nil {
		return false
	}
	q.overrun = true // it takes no more completions
	q.fail()
	return true
}

func (d *Device) fireSRQ(t ib.EventType, id uint32) bool {
	s := find(d, func(c *Context) []*SRQ { return c.srqs }, func(s *SRQ) bool { return s.id == id })
	switch {
	case s == nil:
		return false
	case t == ib.EventSRQLimitReached:
		s.ring.limit = 0
		s.ctx.event(Event{Type: t, SRQ: s})
	default:
		s.fail()
	}
	return true
}

// find returns the object of any client of the device for which is holds, or nil.
func find[T any](d *Device, of func(*Context) []*T, is func(*T) bool) *T {
	for _, c := range d.contexts {
		if i := slices.IndexFunc(of(c), is); i >= 0 {
			return of(c)[i]
		}
	}
	return nil
}
