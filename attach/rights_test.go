package attach_test

import (
	"encoding/json"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// otherUser is a user ID that differs from the daemon's and is not root's.
const otherUser = 12345

// connectAs returns a socket whose peer credentials are those of another user.
func connectAs(t *testing.T, f *fabrictest.Fabric, uid int) *net.UnixConn {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("left out: only root can be another user")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(euid int) {
		// The raw system call changes this thread alone.
		if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(euid), ^uintptr(0)); no != 0 {
			t.Fatalf("setresuid: %v", no)
		}
	}
	become(uid)
	defer become(0)
	return f.Connect()
}

// A visibleState is what a test reads of a snapshot.
type visibleState struct {
	Devices []struct {
		QPs []nic.QPInfo
		MRs []nic.MRInfo
	}
}

func snapshotOf(t *testing.T, sock *net.UnixConn) (s visibleState) {
	t.Helper()
	c, err := control.NewClient(t.Context(), sock)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSnapshotHidesSecretsOfOtherUsers looks at a connection of the daemon's user and one of
// another user. PSNs would let the viewer forge packets; addresses would reveal a process's layout.
func TestSnapshotHidesSecretsOfOtherUsers(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	stranger, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(connectAs(t, f, otherUser)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Close() })
	verbstest.EndpointConfig{}.New(t, stranger)

	for viewer, sock := range map[string]*net.UnixConn{"the operator": f.Connect(), "the other user": connectAs(t, f, otherUser)} {
		d := snapshotOf(t, sock).Devices[0]
		if len(d.QPs) != 2 || len(d.MRs) != 2 {
			t.Fatalf("%s sees %+v", viewer, d)
		}
		// The first of each kind belongs to the daemon's user, the second to the other user.
		q, m := d.QPs[0], d.MRs[0]
		hidden := viewer == "the other user"
		if q.Hidden != hidden || m.Hidden != hidden || (q.SQPSN|q.RQPSN == 0) != hidden || (m.IOVA == 0) != hidden {
			t.Errorf("%s sees PSNs %d and %d, and memory at %#x, of the daemon's user", viewer, q.SQPSN, q.RQPSN, m.IOVA)
		}
		if q, m := d.QPs[1], d.MRs[1]; q.Hidden || m.Hidden || m.IOVA == 0 {
			t.Errorf("%s sees QP %+v and MR %+v of the other user", viewer, q, m)
		}
	}
}

// TestDescriptorsMustGrantAccess passes descriptors that name a file without the right to use it.
func TestDescriptorsMustGrantAccess(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	owner, page := openContext(t, f)
	file := t.TempDir() + "/domain"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string, flags int) int {
		t.Helper()
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	create := abi.OpenXRCDRequest{Flags: abi.XRCDCreate}
	owner.mustCall(abi.OpOpenXRCD, []int{open(file, unix.O_RDONLY)}, create)
	c := connect(t, f)
	for name, flags := range map[string]int{"O_PATH": unix.O_PATH, "O_WRONLY": unix.O_WRONLY} {
		c.wantErrno("XRC domain of a file opened "+name, syscall.EBADF, c.call(abi.OpOpenXRCD, []int{open(file, flags)}, create))
	}

	joining := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { joining.sock.Close() })
	joining.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	doorbells := "/proc/self/fd/" + strconv.Itoa(page)
	for name, flags := range map[string]int{"O_PATH": unix.O_PATH, "O_RDONLY": unix.O_RDONLY} {
		joining.wantErrno("doorbell page opened "+name, syscall.EBADF, joining.call(abi.OpJoinDevice, []int{open(doorbells, flags)}))
	}

	pd := handleOf(c.mustCall(abi.OpAllocPD, nil))
	memory, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(memory) })
	if err := unix.Ftruncate(memory, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	region := "/proc/self/fd/" + strconv.Itoa(memory)
	for name, flags := range map[string]int{"O_PATH": unix.O_PATH, "O_RDONLY": unix.O_RDONLY} {
		for _, kind := range []uint32{abi.MemoryMapped, abi.MemoryDMABuf, abi.MemorySelf} {
			p := c.call(abi.OpRegMR, []int{open(region, flags)}, abi.RegMRRequest{PD: pd, Memory: kind, Access: 1, Length: 4096})
			if p.Header.Errno == 0 {
				t.Errorf("memory of kind %d registered for writing with a descriptor opened %s", kind, name)
			}
		}
	}
}
