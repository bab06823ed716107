package wire

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// rxStride is the distance between receive buffers: room for the longest super-packet and its
// headers, and 64 bytes more than a multiple of the page size, so that the headers of different
// buffers do not compete for one set of the processor's cache.
const rxStride = 68<<10 + 64

// An rxDecoder takes the messages of a socket apart.
type rxDecoder interface {
	// load takes a message. It reports whether it may hold packets, or why not.
	load(m rxMessage) (Drop, bool)

	// next sets f to the next packet of the message and reports whether there was one. The packet
	// refers to the message's bytes.
	next(f *RxFrame) bool

	// runts returns how many packets were too short for BTH and ICRC since the last call.
	runts() uint64
}

// An rxMessage is a message that was received from a socket.
type rxMessage struct {
	data    []byte
	control []byte                 // control messages
	name    *unix.RawSockaddrInet6 // source address, of either family; nil on sockets without
}

// An rxBatch holds the messages of one recvmmsg, until Receive has handed out all their packets.
type rxBatch struct {
	msgs       [rxMessages]mmsghdr
	iovs       [rxMessages]unix.Iovec
	names      [rxMessages]unix.RawSockaddrInet6 // room for either family
	control    []byte
	controlLen int // room for control data of each message
	buf        []byte
	n, next    int         // messages received, and the next to load
	limit      int         // messages to request
	hint       arrivalHint // of whether a recvmmsg finds some
}

// newRxBatch returns buffers for messages with controlLen bytes of control data each, and with
// source addresses if named.
func newRxBatch(controlLen int, named bool) *rxBatch {
	b := &rxBatch{limit: rxMessages, controlLen: controlLen, control: make([]byte, rxMessages*controlLen), buf: make([]byte, rxMessages*rxStride)}
	for i := range b.msgs {
		m := &b.msgs[i]
		b.iovs[i].Base = &b.buf[i*rxStride]
		b.iovs[i].SetLen(rxStride)
		m.Iov = &b.iovs[i]
		m.SetIovlen(1)
		if named {
			m.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		}
		if controlLen > 0 {
			m.Control = &b.control[i*controlLen]
		}
		b.prepare(i)
	}
	return b
}

// receive fills frames with packets: those that are left of the last recvmmsg, or else those of a
// new one. It returns how many, or an error.
func (b *rxBatch) receive(now int64, fd int, d rxDecoder, frames []RxFrame, c *LinkCounters) (n int, err error) {
	failure := ErrUnread // or that of the last recvmmsg
	for dropped := 0; n < len(frames); {
		if d.next(&frames[n]) {
			c.addRx(&frames[n])
			n++
			continue
		}
		c.Drops[DropUDPLength] += d.runts()
		if m, ok := b.take(); ok {
			if reason, ok := d.load(m); !ok {
				c.Drops[reason]++
			}
			continue
		}
		if n > 0 {
			break // a new recvmmsg overwrites the bytes of the packets in frames
		}
		if dropped == maxUndelivered {
			return 0, failure
		}
		if !b.hint.mayPoll(now) {
			break
		}
		// Messages may be behind an error: of an earlier send, or that the interface went down.
		e := b.fill(fd)
		switch failure = ErrUnread; {
		case b.n == 0 && e == 0:
			return 0, nil
		case e == unix.EINVAL: // Linux before 6.2 dropped a super-packet that it cannot describe
			c.Drops[DropTruncated]++
		case e != 0:
			failure = os.NewSyscallError("recvmmsg", e)
		}
		dropped++
	}
	return n, nil
}

// fill receives messages.
func (b *rxBatch) fill(fd int) unix.Errno {
	for i := range b.n {
		b.prepare(i)
	}
	n, e := recvmmsg(fd, b.msgs[:b.limit])
	b.hint.polled(n, n < b.limit && e == 0)
	b.n, b.next = n, 0
	bytes := 0
	for i := range n {
		bytes += int(b.msgs[i].n)
	}
	b.limit = rxMessages
	if bytes > n*rxLongMessage {
		b.limit = rxLongMessages
	}
	return e
}

// prepare sets what the kernel changes when it has received message i.
func (b *rxBatch) prepare(i int) {
	m := &b.msgs[i]
	m.Flags = 0
	m.SetControllen(b.controlLen)
	if m.Name != nil {
		m.Namelen = uint32(unsafe.Sizeof(b.names[i]))
	}
}

// take returns the next message that was received.
func (b *rxBatch) take() (rxMessage, bool) {
	if b.next == b.n {
		return rxMessage{}, false
	}
	i := b.next
	b.next++
	m := &b.msgs[i]
	return rxMessage{
		data:    b.buf[i*rxStride:][:m.n:m.n],
		control: b.control[i*b.controlLen:][:m.Controllen],
		name:    &b.names[i],
	}, true
}

// segments cuts a super-packet into its packets.
type segments struct {
	rest  []byte // the packets that are left, each from BTH to ICRC
	size  int    // of each packet but the last
	i     int    // number of the next packet, from 0
	short int    // packets that were too short for BTH and ICRC

	icrc    packet.ICRCBase // of the packets of icrcLen bytes from BTH to pad
	icrcLen int
}

// begin starts with the bytes of another super-packet.
func (s *segments) begin(b []byte) { s.rest, s.i, s.icrcLen = b, 0, 0 }

// icrcBase returns the base of the packets of n bytes from BTH to pad. a is the addressing of the
// super-packet.
func (s *segments) icrcBase(a *packet.Addressing, n int) packet.ICRCBase {
	if n != s.icrcLen {
		s.icrc, s.icrcLen = a.ICRCBase(n), n
	}
	return s.icrc
}

// cut returns the next packet, from BTH to ICRC, and its number; nil at the end.
func (s *segments) cut() (b []byte, i int) {
	for len(s.rest) > 0 {
		b := s.rest[:min(s.size, len(s.rest))]
		s.rest = s.rest[len(b):]
		i := s.i
		s.i++
		if len(b) >= packet.BTHLen+packet.ICRCLen {
			return b, i
		}
		s.short++
	}
	return nil, 0
}

// runts implements rxDecoder.
func (s *segments) runts() uint64 {
	n := s.short
	s.short = 0
	return uint64(n)
}
