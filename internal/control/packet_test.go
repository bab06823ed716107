package control

import (
	"errors"
	"net"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// An empty packet looks like the end of the connection, but its descriptors must be closed.
func TestEmptyPacketKeepsItsDescriptors(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "socket")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	oob := unix.UnixRights(fds[1], fds[1])
	msg := unix.Msghdr{Control: &oob[0]} // unix.Sendmsg would add a byte
	msg.SetControllen(len(oob))
	if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fds[1]), uintptr(unsafe.Pointer(&msg)), 0); errno != 0 {
		t.Fatal(errno)
	}
	p, err := Read(c.(*net.UnixConn), make([]byte, 100))
	if !errors.Is(err, abi.ErrShort) || len(p.FDs) != 2 {
		t.Errorf("%d descriptors, %v", len(p.FDs), err)
	}
	p.CloseFDs()
}
