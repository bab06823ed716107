package attach_test

import (
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
)

// blockedMemory returns a page of memory whose first access waits until release is called, which
// the test's cleanup does too.
func blockedMemory(t *testing.T) (page []byte, release func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("left out: only root may let page faults of the kernel wait")
	}
	const (
		ioctlAPI      = 0xc018aa3f
		ioctlRegister = 0xc020aa00
		apiVersion    = 0xaa
		modeMissing   = 1
	)
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, no := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if no != 0 {
		t.Fatalf("userfaultfd: %v", no)
	}
	release = sync.OnceFunc(func() { unix.Close(int(fd)) })
	t.Cleanup(func() { release(); unix.Munmap(page) })
	api := [3]uint64{apiVersion}
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&api))); no != 0 {
		t.Fatalf("UFFDIO_API: %v", no)
	}
	area := [4]uint64{addressOf(page), uint64(len(page)), modeMissing}
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&area))); no != 0 {
		t.Fatalf("UFFDIO_REGISTER: %v", no)
	}
	return page, release
}

// lingeringSocket returns a descriptor whose last close waits until release is called, which the
// test's cleanup does too. The test must close it before the server does.
func lingeringSocket(t *testing.T) (fd int, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		peer.(*net.TCPConn).SetLinger(0) // resets the connection
		peer.Close()
	})
	t.Cleanup(release)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, true)
	for buf := make([]byte, 1<<20); err == nil; { // until the peer's window is full
		_, err = unix.Write(fd, buf)
	}
	return fd, release
}

// othersProceed checks that a client whose request waits holds up neither other clients, new ones
// and snapshots, nor its own other requests. Each of these fails if it gets no reply.
func othersProceed(t *testing.T, f *fabrictest.Fabric, waiting, other *rawClient, page int) {
	t.Helper()
	mem := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	for _, r := range []*rawClient{waiting, other, connect(t, f), joinContext(t, f, page)} {
		pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
		if r != waiting {
			r.mustCall(abi.OpRegMR, []int{mem}, abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Access: 1, Length: 4096})
		}
		r.mustCall(abi.OpSnapshot, nil)
	}
}

// waitForClients waits until the server has n clients.
func waitForClients(t *testing.T, f *fabrictest.Fabric, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(f.Server.Snapshot().Clients) != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients are left, want %d", len(f.Server.Snapshot().Clients), n)
		}
	}
}

func TestRegistrationThatWaitsHoldsUpNobody(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r, page := openContext(t, f)
	other := connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	mem, release := blockedMemory(t)
	r.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR}, nil,
		abi.RegMRRequest{PD: pd, Memory: abi.MemoryProcess, Access: 1, Length: 4096, Address: addressOf(mem)})
	tag := r.tag
	othersProceed(t, f, r, other, page)
	release()
	if p, err := r.receive(); err != nil || p.Header.Tag != tag || p.Header.Errno != 0 {
		t.Errorf("the registration: %+v, %v", p.Header, err)
	}
}

func TestClientLeavesWhileItsRegistrationWaits(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	mem, release := blockedMemory(t)
	for range 70 { // more than may be prepared at a time
		r.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR}, nil,
			abi.RegMRRequest{PD: pd, Memory: abi.MemoryProcess, Access: 1, Length: 4096, Address: addressOf(mem)})
	}
	r.sock.Close()
	waitForClients(t, f, 1)
	if s := f.Server.Snapshot(); len(s.Devices[0].PDs) != 0 {
		t.Errorf("the client left %d PDs", len(s.Devices[0].PDs))
	}
	late := connect(t, f)
	pd = handleOf(late.mustCall(abi.OpAllocPD, nil))
	late.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR}, nil,
		abi.RegMRRequest{PD: pd, Memory: abi.MemoryProcess, Access: 1, Length: 4096, Address: addressOf(mem)})
	f.Close() // returns, although requests wait
	release()
}

func TestDescriptorWhoseCloseWaitsHoldsUpNobody(t *testing.T) {
	for _, c := range []struct {
		name string
		op   uint16
		body []any
		want syscall.Errno
	}{
		{"register MR", abi.OpRegMR, []any{abi.RegMRRequest{PD: 1, Memory: abi.MemoryMapped, Access: 1, Length: 4096}}, syscall.EINVAL},
		{"open XRCD", abi.OpOpenXRCD, []any{abi.OpenXRCDRequest{Flags: abi.XRCDCreate}}, 0},
		{"join device", abi.OpJoinDevice, nil, syscall.EINVAL},
		{"a request without descriptors", abi.OpAllocPD, nil, syscall.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{})
			other := connect(t, f)
			fd, release := lingeringSocket(t)
			r := &rawClient{t: t}
			r.sock = f.Connect(func(sock *net.UnixConn) {
				r.sock = sock
				r.send(abi.Header{Version: abi.Version, Op: abi.OpHello}, nil, abi.HelloRequest{})
				r.send(abi.Header{Version: abi.Version, Op: abi.OpOpenDevice}, nil, abi.OpenDeviceRequest{})
				r.send(abi.Header{Version: abi.Version, Op: c.op, FDs: 1}, []int{fd}, c.body...)
				unix.Close(fd)
			})
			t.Cleanup(func() { r.sock.Close() })
			r.receive()
			opened, err := control.Read(r.sock, make([]byte, abi.MaxMessage))
			if err != nil || opened.Header.Op != abi.OpOpenDevice || len(opened.FDs) == 0 {
				t.Fatalf("open device: %+v, %v", opened.Header, err)
			}
			t.Cleanup(opened.CloseFDs)
			tag := r.tag
			othersProceed(t, f, r, other, opened.FDs[0])
			release()
			if p, err := r.receive(); err != nil || p.Header.Tag != tag || syscall.Errno(p.Header.Errno) != c.want {
				t.Errorf("the request: %+v, %v", p.Header, err)
			}
		})
	}
}

// The socket of a client has a message that the server does not read, and with it a descriptor.
func TestClientLeavesDescriptorWhoseCloseWaits(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	fd, release := lingeringSocket(t)
	r := &rawClient{t: t}
	f.Connect(func(sock *net.UnixConn) {
		r.sock = sock
		r.send(abi.Header{Version: abi.Version, Op: abi.OpAllocPD}, nil, make([]byte, abi.MaxMessage))
		r.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR, FDs: 1}, []int{fd})
		unix.Close(fd)
		sock.Close()
	})
	waitForClients(t, f, 0)
	connect(t, f)
	release()
}
