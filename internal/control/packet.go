// Package control carries the messages of internal/abi over a seqpacket socket: packets
// with their descriptors for both ends, and the client's calls.
package control

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// ErrTruncated is a packet that is longer than any message.
var ErrTruncated = errors.New("message is longer than allowed")

// A Packet is a received message. Who has it owns its descriptors. They may be fewer
// than were sent, and than Header.FDs says: those that this process had no room for
// are lost, and those beyond abi.MaxFDs.
type Packet struct {
	Header abi.Header
	Body   []byte // part of the buffer given to Read
	FDs    []int
}

// CloseFDs closes the descriptors that are still there.
func (p *Packet) CloseFDs() {
	for _, fd := range p.FDs {
		unix.Close(fd)
	}
	p.FDs = nil
}

// Take gives the first descriptor away, -1 if there is none.
func (p *Packet) Take() int {
	if len(p.FDs) == 0 {
		return -1
	}
	fd := p.FDs[0]
	p.FDs = p.FDs[1:]
	return fd
}

// Read waits for a packet and parses its header. After an error that is ErrTruncated,
// abi.ErrShort or abi.ErrLength the socket is still good: the packet was not, and its
// descriptors are closed. io.EOF is the end of the connection.
func Read(c *net.UnixConn, buf []byte) (Packet, error) {
	oob := make([]byte, unix.CmsgSpace(abi.MaxFDs*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return Packet{}, err
	}
	p := Packet{FDs: descriptors(oob[:oobn])}
	if flags&unix.MSG_TRUNC != 0 {
		p.CloseFDs()
		return p, ErrTruncated
	}
	p.Header, p.Body, err = abi.ParseHeader(buf[:n])
	if err != nil {
		p.CloseFDs()
	}
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

// Write sends a message made by abi.Message with its descriptors, which stay the caller's.
func Write(c *net.UnixConn, msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(msg, oob, nil)
	return err
}

// Error is a request that the daemon refused.
type Error struct {
	Op    string // what was asked: "create QP"
	Errno syscall.Errno
	Text  string // the daemon's explanation, may be empty
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Errno)
	}
	return fmt.Sprintf("%s: %s (%v)", e.Op, e.Text, e.Errno)
}

// Unwrap makes errors.Is(err, syscall.EINVAL) and its like work.
func (e *Error) Unwrap() error { return e.Errno }
