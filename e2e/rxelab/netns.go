package rxelab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects a TCP socket in a network namespace. The calling goroutine stays in its own.
func Dial(ctx context.Context, namespace string, to netip.AddrPort) (net.Conn, error) {
	f, err := within(namespace, to, func(fd int, sa unix.Sockaddr) error {
		return connect(fd, sa)
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %v in %s: %w", to, namespace, err)
	}
	defer f.Close()
	return net.FileConn(f)
}

// connectTime bounds the time of a connection attempt.
const connectTime = 5 * time.Second

// connect avoids a blocking connect(2): a signal would interrupt it halfway, and the Go runtime
// sends signals at any time.
func connect(fd int, sa unix.Sockaddr) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
		return err
	}
	for end := time.Now().Add(connectTime); ; {
		left := max(0, time.Until(end))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left.Milliseconds()))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		}
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && errno != 0 {
			err = unix.Errno(errno)
		}
		return err
	}
}

// Listen creates a listening TCP socket in a network namespace.
func Listen(namespace string, at netip.AddrPort) (net.Listener, error) {
	f, err := within(namespace, at, func(fd int, sa unix.Sockaddr) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, sa); err != nil {
			return err
		}
		return unix.Listen(fd, 8)
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %v in %s: %w", at, namespace, err)
	}
	defer f.Close()
	return net.FileListener(f)
}

// within creates a TCP socket in the namespace and prepares it with do.
func within(namespace string, addr netip.AddrPort, do func(fd int, sa unix.Sockaddr) error) (*os.File, error) {
	ns, err := os.Open(filepath.Join("/run/netns", namespace))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var f *os.File
	result := make(chan error)
	go func() {
		// The thread stays in the namespace, so it is not unlocked: it ends with the goroutine.
		runtime.LockOSThread()
		result <- func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("setns: %w", err)
			}
			family, sa := sockaddr(addr)
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			f = os.NewFile(uintptr(fd), addr.String())
			if err := do(fd, sa); err != nil {
				f.Close()
				return err
			}
			return nil
		}()
	}()
	if err := <-result; err != nil {
		return nil, err
	}
	return f, nil
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// waitFor calls ok every 20 ms until it returns true or ctx ends.
func waitFor(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

func readFile(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}
