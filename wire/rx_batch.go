package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// receiveStride is the distance of receive buffers: room for the longest super-packet
// and its headers, and 64 bytes more than a multiple of a page, so that the headers of
// different buffers do not compete for one set of the processor's cache.
const receiveStride = 68<<10 + 64

// An intake is filled by one recvmmsg, and emptied over one or more calls of Receive.
type intake struct {
	msgs    [receiveMessages]mmsghdr
	iovs    [receiveMessages]unix.Iovec
	names   [receiveMessages]unix.RawSockaddrInet6 // room for either family
	control []byte
	each    int // bytes of control per message
	buf     []byte
	n, next int // messages received, and the next to look at
	limit   int // messages to ask for
}

// newIntake makes buffers for messages with control bytes of control data each, and with
// a source address where named.
func newIntake(control int, named bool) *intake {
	in := &intake{limit: receiveMessages, each: control, control: make([]byte, receiveMessages*control), buf: make([]byte, receiveMessages*receiveStride)}
	for i := range in.msgs {
		m := &in.msgs[i]
		in.iovs[i].Base = &in.buf[i*receiveStride]
		in.iovs[i].SetLen(receiveStride)
		m.Iov = &in.iovs[i]
		m.SetIovlen(1)
		if named {
			m.Name = (*byte)(unsafe.Pointer(&in.names[i]))
		}
		if control > 0 {
			m.Control = &in.control[i*control]
		}
	}
	return in
}

// fill receives into all buffers.
func (in *intake) fill(fd int) unix.Errno {
	for i := range in.limit {
		m := &in.msgs[i]
		m.Flags = 0
		m.SetControllen(in.each)
		if m.Name != nil {
			m.Namelen = uint32(unsafe.Sizeof(in.names[i]))
		}
	}
	n, e := recvmmsg(fd, in.msgs[:in.limit])
	in.n, in.next = n, 0
	bytes := 0
	for i := range n {
		bytes += int(in.msgs[i].n)
	}
	in.limit = receiveMessages
	if bytes > n*longMessage {
		in.limit = receiveLong
	}
	return e
}

// take returns the next message and its number, or nil where there is none.
func (in *intake) take() (b []byte, m *mmsghdr, i int) {
	if in.next == in.n {
		return nil, nil, 0
	}
	i = in.next
	in.next++
	m = &in.msgs[i]
	return in.buf[i*receiveStride:][:m.n:m.n], m, i
}

// A cutter hands out the packets of a super-packet, one after the other.
type cutter struct {
	rest  []byte // from BTH to ICRC, of all that are left
	size  int    // of each but the last
	i     int    // number of the next, from 0
	short int    // how many were too short for BTH and ICRC
}

// cut returns the next packet, from BTH to ICRC, and its number; nil at the end.
func (c *cutter) cut() (b []byte, i int) {
	for len(c.rest) > 0 {
		b := c.rest[:min(c.size, len(c.rest))]
		c.rest = c.rest[len(b):]
		i := c.i
		c.i++
		if len(b) >= packet.BTHLen+packet.ICRCLen {
			return b, i
		}
		c.short++
	}
	return nil, 0
}

// runts returns how many packets were too short since it was last asked.
func (c *cutter) runts() uint64 {
	n := c.short
	c.short = 0
	return uint64(n)
}
