package verbs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

const everyAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// sharedFile returns shared memory, which replaces a DMA buffer and can be truncated.
func sharedFile(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("buffer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "buffer")
	return f, f.Truncate(size)
}

func newFile(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := sharedFile(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// remoteMemory is memory of y outside of its process.
type remoteMemory struct {
	mr      *verbs.MR
	content func() []byte
}

// newRemoteMemory allocates n bytes of each kind.
func newRemoteMemory(t *testing.T, y *verbstest.Endpoint, n int) map[string]remoteMemory {
	t.Helper()
	dm, err := y.Context.AllocDM(t.Context(), uint64(n)+8, 3)
	ok(t, err)
	device, err := y.PD.RegDM(t.Context(), dm, 8, uint64(n), everyAccess|verbs.AccessZeroBased)
	ok(t, err)
	m := map[string]remoteMemory{"device": {device, func() []byte {
		p := make([]byte, n)
		ok(t, dm.CopyFrom(t.Context(), p, 8))
		return p
	}}}
	for name, seals := range map[string]int{"sealed": unix.F_SEAL_SHRINK, "guarded": 0} {
		f := newFile(t, int64(n)+4096)
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		mr, err := y.PD.RegDMABuf(t.Context(), f, 1000, uint64(n), 1<<40+1000, everyAccess|verbs.AccessRelaxedOrdering)
		ok(t, err)
		m[name] = remoteMemory{mr, func() []byte {
			p := make([]byte, n)
			if _, err := f.ReadAt(p, 1000); err != nil {
				t.Fatal(err)
			}
			return p
		}}
	}
	return m
}

func TestEveryOperationOnDeviceMemoryAndDMABuffers(t *testing.T) {
	const n = 100_000 // more than one message copies
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{BufSize: 4 * n}.Connect(t, a, b)
	kinds := newRemoteMemory(t, y, n)
	maps.Copy(kinds, kernelBuffers(t, y, n))
	for name, m := range kinds {
		t.Run(name, func(t *testing.T) {
			fill(x.Buf[:n], 1)
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, n), RemoteAddr: m.mr.Addr(), RKey: m.mr.RKey()})
			x.Completion()
			same(t, "WRITE", m.content(), x.Buf[:n])
			x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(n, n), RemoteAddr: m.mr.Addr(), RKey: m.mr.RKey()})
			x.Completion()
			same(t, "READ", x.Buf[n:2*n], x.Buf[:n])

			was := binary.LittleEndian.Uint64(m.content()[16:])
			at := (m.mr.Addr() + 23) &^ 7
			if name != "device" { // whose address is not where it lies
				was = binary.LittleEndian.Uint64(m.content()[at-m.mr.Addr():])
			}
			x.Send(verbs.SendWR{Opcode: verbs.WRAtomicFetchAndAdd, SGList: x.SGE(0, 8), RemoteAddr: at, RKey: m.mr.RKey(), CompareAdd: 5})
			x.Completion()
			if got := binary.LittleEndian.Uint64(m.content()[at-m.mr.Addr():]); got != was+5 || binary.LittleEndian.Uint64(x.Buf) != was {
				t.Errorf("fetch and add: returned %#x, memory holds %#x", was, got)
			}

			// The owner sends from it and receives into it.
			sge := verbs.SGE{Addr: m.mr.Addr(), Length: n, LKey: m.mr.LKey()}
			x.Recv(1, 2*n, n)
			y.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{sge}})
			y.Completion()
			x.Completion()
			same(t, "SEND", x.Buf[2*n:3*n], m.content())
			fill(x.Buf[:n], 9)
			ok(t, y.QP.PostRecv(verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{sge}}))
			x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, n)})
			x.Completion()
			y.Completion()
			same(t, "receive", m.content(), x.Buf[:n])
			ok(t, m.mr.Close(t.Context()))
		})
	}
}

func TestDeviceMemoryCopy(t *testing.T) {
	f := verbstest.New(t, verbstest.WithLimits(verbstest.Limits{Device: 1 << 18}))
	c := f.Open(0)
	a, err := c.QueryDevice(t.Context())
	if err != nil || a.MaxDMSize != 1<<18 {
		t.Fatalf("MaxDMSize %d, %v", a.MaxDMSize, err)
	}
	if _, err := c.AllocDM(t.Context(), a.MaxDMSize+1, 0); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("allocating more than MaxDMSize: %v", err)
	}
	for _, bad := range []struct {
		n     uint64
		align uint32
	}{{0, 0}, {8, 13}} {
		if _, err := c.AllocDM(t.Context(), bad.n, bad.align); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("allocating %+v: %v", bad, err)
		}
	}
	m, err := c.AllocDM(t.Context(), a.MaxDMSize, 12)
	ok(t, err)
	want, got := make([]byte, a.MaxDMSize), make([]byte, a.MaxDMSize)
	fill(want, 5)
	ok(t, m.CopyTo(t.Context(), 0, want))
	ok(t, m.CopyTo(t.Context(), 4, want[4:4]))
	ok(t, m.CopyFrom(t.Context(), got, 0))
	same(t, "copies", got, want)
	for _, bad := range []struct {
		offset uint64
		n      int
	}{{1, 4}, {4, 1}, {a.MaxDMSize - 4, 8}, {a.MaxDMSize, 4}, {1 << 63, 4}, {1<<64 - 61440, 100_000}, {4, int(a.MaxDMSize)}, {0, 61440 + 1}} {
		p := make([]byte, bad.n)
		if err := m.CopyTo(t.Context(), bad.offset, p); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("copy to %+v: %v", bad, err)
		}
		if err := m.CopyFrom(t.Context(), p, bad.offset); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("copy from %+v: %v", bad, err)
		}
	}
	ok(t, m.CopyFrom(t.Context(), got, 0))
	same(t, "after what was refused", got, want)

	pd, err := c.AllocPD(t.Context())
	ok(t, err)
	if _, err := pd.RegDM(t.Context(), m, 0, 8, verbs.AccessLocalWrite); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("registering without AccessZeroBased: %v", err)
	}
	mr, err := pd.RegDM(t.Context(), m, 8, 8, verbs.AccessZeroBased)
	ok(t, err)
	if err := m.Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing device memory with a region: %v", err)
	}
	ok(t, mr.Close(t.Context()))
	ok(t, m.Close(t.Context()))
	if err := m.Close(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closing device memory twice: %v", err)
	}
	ok(t, pd.Close(t.Context()))
}

func TestTruncatedDMABufferFailsWorkRequests(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	f := newFile(t, 8192)
	mr, err := y.PD.RegDMABuf(t.Context(), f, 0, 8192, 0, everyAccess)
	ok(t, err)
	fill(x.Buf[:4096], 1)
	ok(t, f.Truncate(4096))
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 4096), RKey: mr.RKey()})
	x.Completion()
	got := make([]byte, 4096)
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, x.Buf[:4096]) {
		t.Errorf("WRITE to the part that is left: %v", err)
	}
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 8), RemoteAddr: 5000, RKey: mr.RKey()})
	x.Failure(verbs.WCRemOpErr)
	// The daemon and other connections still work.
	x, y = verbstest.ConnectedRC(t, a, b)
	operations(t, x, y, 5000)
}

func TestRegDMABufRejectsInvalidFiles(t *testing.T) {
	f := verbstest.New(t)
	c := f.Open(0)
	pd, err := c.AllocPD(t.Context())
	ok(t, err)
	file := newFile(t, 8192)
	readOnly, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	ok(t, err)
	defer readOnly.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	ok(t, err)
	defer null.Close()
	for _, bad := range []struct {
		what                 string
		f                    *os.File
		offset, length, iova uint64
		access               verbs.Access
		want                 syscall.Errno
	}{
		{"length 0", file, 0, 0, 0, 0, syscall.EINVAL},
		{"a range beyond the end of the file", file, 4096, 4097, 0, 0, syscall.EINVAL},
		{"offset plus length overflows", file, 1 << 63, 1 << 63, 0, 0, syscall.ENOMEM},
		{"an offset beyond the end of the file", file, 1<<64 - 4096, 4096, 0, 0, syscall.EINVAL},
		{"addresses overflow", file, 0, 8192, 1<<64 - 4096, 0, syscall.EINVAL},
		{"iova with another offset in its page", file, 100, 100, 101, 0, syscall.EINVAL},
		{"remote write without local write", file, 0, 8192, 0, verbs.AccessRemoteWrite, syscall.EINVAL},
		{"zero-based", file, 0, 8192, 0, verbs.AccessLocalWrite | verbs.AccessZeroBased, syscall.EINVAL},
		{"memory windows", file, 0, 8192, 0, verbs.AccessLocalWrite | verbs.AccessMWBind, syscall.EINVAL},
		{"write access to a read-only file", readOnly, 0, 8192, 0, verbs.AccessLocalWrite, syscall.EACCES},
		{"a character device", null, 0, 1, 0, 0, syscall.EINVAL},
	} {
		if _, err := pd.RegDMABuf(t.Context(), bad.f, bad.offset, bad.length, bad.iova, bad.access); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", bad.what, err, bad.want)
		}
	}
	mr, err := pd.RegDMABuf(t.Context(), readOnly, 0, 8192, 0, verbs.AccessRemoteRead)
	ok(t, err)
	ok(t, mr.Close(t.Context()))
}
