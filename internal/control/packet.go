// Package control carries the messages of internal/abi over a seqpacket socket. It has the packets
// and their descriptors for both sides, and the client side of requests, replies and events.
package control

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// ErrTruncated is returned for a packet that is longer than any message.
var ErrTruncated = errors.New("message is longer than allowed")

// A Packet is a received message. Its holder owns the descriptors. There may be fewer than the
// sender sent and Header.FDs says: those beyond abi.MaxFDs, and those for which this process had no
// room, are lost.
type Packet struct {
	Header abi.Header
	Body   []byte // refers to the buffer given to Read
	FDs    []int
}

// CloseFDs closes the remaining descriptors.
func (p *Packet) CloseFDs() {
	for _, fd := range p.FDs {
		unix.Close(fd)
	}
	p.FDs = nil
}

// Take removes and returns the first descriptor, or -1 if there is none. The caller owns it.
func (p *Packet) Take() int {
	if len(p.FDs) == 0 {
		return -1
	}
	fd := p.FDs[0]
	p.FDs = p.FDs[1:]
	return fd
}

// Read waits for a packet and parses its header. After ErrTruncated, abi.ErrShort or abi.ErrLength,
// the packet only has the descriptors, and the socket can still be used. At the end of the
// connection it returns io.EOF.
func Read(c *net.UnixConn, buf []byte) (Packet, error) {
	oob := make([]byte, unix.CmsgSpace(abi.MaxFDs*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if n == 0 && oobn > 0 { // an empty packet: for net it is the end
		return Packet{FDs: descriptors(oob[:oobn])}, abi.ErrShort
	}
	if err != nil {
		return Packet{}, err
	}
	p := Packet{FDs: descriptors(oob[:oobn])}
	if flags&unix.MSG_TRUNC != 0 {
		return p, ErrTruncated
	}
	p.Header, p.Body, err = abi.ParseHeader(buf[:n])
	return p, err
}

func descriptors(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// Write sends a message made by abi.Message and its descriptors. The caller keeps the descriptors.
func Write(c *net.UnixConn, msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(msg, oob, nil)
	return err
}

// Error is the daemon's error reply to a request.
type Error struct {
	Op    string // the name of the request: "create QP"
	Errno syscall.Errno
	Text  string // the daemon's explanation; may be empty
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Errno)
	}
	return fmt.Sprintf("%s: %s (%v)", e.Op, e.Text, e.Errno)
}

// Unwrap returns the errno, for errors.Is(err, syscall.EINVAL).
func (e *Error) Unwrap() error { return e.Errno }
