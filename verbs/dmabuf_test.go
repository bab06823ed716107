package verbs_test

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// ioctl calls an ioctl with a struct.
func ioctl[T any](t *testing.T, fd int, request uintptr, arg *T) uintptr {
	t.Helper()
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		t.Fatalf("ioctl %#x: %v", request, errno)
	}
	return r
}

// An exporter is a device file of the kernel that creates DMA buffers of n bytes of main memory, in
// whole pages.
type exporter struct {
	file string
	make func(t *testing.T, dev int, n uint64) *os.File
}

// Numbers from <linux/udmabuf.h> and <linux/dma-heap.h>.
var exporters = map[string]exporter{
	"udmabuf": {"/dev/udmabuf", func(t *testing.T, dev int, n uint64) *os.File {
		mem := newFile(t, int64(n))
		if _, err := unix.FcntlInt(mem.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		const create = 0x40187542
		fd := ioctl(t, dev, create, &struct {
			memfd, flags uint32
			offset, size uint64
		}{memfd: uint32(mem.Fd()), flags: unix.O_CLOEXEC, size: n})
		return os.NewFile(fd, "udmabuf")
	}},
	"heap": {"/dev/dma_heap/system", func(t *testing.T, dev int, n uint64) *os.File {
		const alloc = 0xc0184800
		req := struct {
			length      uint64
			fd, fdFlags uint32
			heapFlags   uint64
		}{length: n, fdFlags: unix.O_RDWR | unix.O_CLOEXEC}
		ioctl(t, dev, alloc, &req)
		return os.NewFile(uintptr(req.fd), "dma-buf")
	}},
}

// everyExporter requires all exporters; e2e sets it on a machine that has them.
const everyExporter = "SOFTROCE_EVERY_EXPORTER"

// kernelBuffers creates a DMA buffer with each available exporter and registers n bytes of it.
func kernelBuffers(t *testing.T, y *verbstest.Endpoint, n int) map[string]remoteMemory {
	t.Helper()
	m := map[string]remoteMemory{}
	for name, e := range exporters {
		dev, err := unix.Open(e.file, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil && os.Getenv(everyExporter) == "" {
			continue
		}
		ok(t, err)
		defer unix.Close(dev)
		size := (n + 2*4096 - 1) &^ 4095
		f := e.make(t, dev, uint64(size))
		t.Cleanup(func() { f.Close() })
		mr, err := y.PD.RegDMABuf(t.Context(), f, 1000, uint64(n), 1<<40+1000, everyAccess)
		ok(t, err)
		if _, err := y.PD.RegDMABuf(t.Context(), f, 4096, uint64(size), 0, verbs.AccessLocalWrite); err == nil {
			t.Errorf("%s: registering beyond the end of the buffer succeeded", name)
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
		ok(t, err)
		t.Cleanup(func() { unix.Munmap(mem) })
		m[name] = remoteMemory{mr, func() []byte { return mem[1000:][:n] }}
	}
	return m
}
