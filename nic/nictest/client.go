// Package nictest is a verbs client for tests in the NIC's own process.
//
// A Client opens a context of a device and creates its objects with rings in heap memory. Work
// requests are posted and completions polled through those rings, in the layout of internal/abi, as
// a program in another process does. It checks nothing, so that a test can violate the ABI.
//
// A Client and its queues may be used by one goroutine at a time. Functions that call the engine
// must run where the engine may be called; Poll, Post and the other accesses to rings may run
// anywhere.
package nictest

import (
	"sync/atomic"
	"unsafe"

	"softroce/internal/abi"
	"softroce/nic"
)

// A Client is an open context and the events that the NIC has reported to it.
type Client struct {
	Device       *nic.Device
	Context      *nic.Context
	DoorbellPage []byte
	Events       []nic.Event // asynchronous events, unless Open was given an EventSink
	Err          error       // why the engine has closed the context, unless Open was given an EventSink
}

// Open opens a context. It provides the doorbell page and, if o.Events is nil, the EventSink. A
// DoorbellFD of 0 means none.
func Open(d *nic.Device, o nic.ContextOptions) (*Client, error) {
	c := &Client{Device: d, DoorbellPage: nic.NewPage(abi.DoorbellSize)}
	o.Doorbell = c.DoorbellPage
	if o.DoorbellFD == 0 {
		o.DoorbellFD = -1
	}
	if o.Events == nil {
		o.Events = (*sink)(c)
	}
	var err error
	c.Context, err = d.Open(o)
	return c, err
}

// A sink records in the client what the engine reports.
type sink Client

func (s *sink) AsyncEvent(e nic.Event) { s.Events = append(s.Events, e) }
func (s *sink) Killed(reason error)    { s.Err = reason }

// Word returns the 32-bit word at an offset of shared memory, a multiple of 4.
func Word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off : off+4][0])) }

// ring sets a queue pair's bit in the doorbell page.
func (c *Client) ring(q *nic.QP) {
	n := q.Doorbell()
	atomic.OrUint32(Word(c.DoorbellPage, abi.DoorbellBits+n/32*4), 1<<(n%32))
}
