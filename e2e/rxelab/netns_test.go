package rxelab

import (
	"net"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// bound returns a socket bound to a port of the loopback address.
func bound(t *testing.T) (fd int, at unix.Sockaddr) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err = unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, at
}

func TestConnectSurvivesSignals(t *testing.T) {
	fd, at := bound(t)
	if err := unix.Listen(fd, 0); err != nil { // the backlog has room for one
		t.Fatal(err)
	}
	first, err := net.Dial("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*unix.SockaddrInet4).Port)).String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	thread, done := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		second, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		thread <- unix.Gettid()
		if err == nil {
			err = connect(second, at) // blocks until the backlog has room
			unix.Close(second)
		}
		done <- err
	}()
	tid := <-thread
	for i := 0; ; i++ {
		if i == 100 {
			if accepted, _, err := unix.Accept(fd); err != nil {
				t.Fatal(err)
			} else {
				defer unix.Close(accepted)
			}
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // the runtime's preemption signal
			runtime.Gosched()
		}
	}
}

func TestConnectReturnsECONNREFUSED(t *testing.T) {
	_, at := bound(t) // not listening
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	if err := connect(client, at); err != unix.ECONNREFUSED {
		t.Errorf("%v, want ECONNREFUSED", err)
	}
}
