package verbs

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// Buffer is memory that a NIC can map, so that it moves data without system calls and additional
// copies. It is zero at first.
type Buffer struct {
	ctx     *Context
	fd      int
	mem     []byte
	regions atomic.Int32

	mu     sync.Mutex
	handle uint32 // with which the daemon keeps the buffer mapped; 0: it does not
}

// AllocBuffer allocates n bytes of shareable memory. The kernel allocates its pages when they are
// first accessed.
func (c *Context) AllocBuffer(n int) (*Buffer, error) {
	if n <= 0 {
		return nil, &Error{Op: "allocate buffer", Errno: syscall.EINVAL, Text: "the length must be at least 1"}
	}
	fd, err := unix.MemfdCreate("softroce-buffer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	mem, err := mapNew(fd, n)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return adopted(c, &Buffer{ctx: c, fd: fd, mem: mem[:n]})
}

// mapNew sets the size of a new memfd and seals it: the daemon maps only files that cannot shrink.
// The daemon adds another seal when it has mapped the file.
func mapNew(fd, n int) ([]byte, error) {
	page := os.Getpagesize()
	size := (n + page - 1) / page * page
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	return mapShared(fd, size)
}

// Bytes returns the memory. It must not be accessed after the Buffer or its Context was closed.
func (b *Buffer) Bytes() []byte { return b.mem }

// Close frees the memory; EBUSY while regions of it are registered.
func (b *Buffer) Close() error {
	if b.regions.Load() != 0 {
		return &Error{Op: "free buffer", Errno: syscall.EBUSY, Text: "memory regions of the buffer are registered"}
	}
	if !b.ctx.disown(b) {
		return ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != 0 {
		go b.ctx.destroy("release memory", abi.OpReleaseMemory, b.handle) // the daemon may hang
	}
	b.abandon()
	return nil
}

// hold has the daemon keep the buffer mapped until Close. Otherwise a buffer without regions could
// not be mapped again, because of the daemon's seal.
func (b *Buffer) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != 0 {
		return
	}
	var got abi.HandleReply
	_, err := b.ctx.call(control.Request{Name: "hold memory", Op: abi.OpHoldMemory, FDs: []int{b.fd}, Reply: &got})
	if err == nil { // or else the registration says why the buffer cannot be mapped
		b.handle = got.Handle
	}
}

func (b *Buffer) abandon() {
	unix.Munmap(b.mem[:cap(b.mem)])
	unix.Close(b.fd)
}

// bufferOf returns the Buffer that contains mem and counts a region in it, or nil.
func (c *Context) bufferOf(mem []byte) (b *Buffer, offset uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.buffers {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(b.mem)))
		if at >= base && at+uintptr(len(mem)) <= base+uintptr(len(b.mem)) {
			b.regions.Add(1)
			return b, uint64(at - base)
		}
	}
	return nil, 0
}

// MR is a memory region: ibv_mr.
type MR struct {
	ctx    *Context
	handle uint32
	lkey   uint32
	rkey   uint32
	kind   uint32 // how the daemon reaches it
	iova   uint64
	length uint64
	mem    []byte
	buffer *Buffer
	pinner runtime.Pinner
}

// RegMR registers mem. Peers and SGEs address it by its virtual address.
//
// The NIC maps memory of the Context's Buffers. It reads and writes any other memory in this
// process, which is slower; RegMR pins that memory until the region is closed. Either way the race
// detector and the memory model do not know of the NIC's writes: read received data after its
// completion was polled.
func (p *PD) RegMR(ctx context.Context, mem []byte, access Access) (*MR, error) {
	return p.RegMRIOVA(ctx, mem, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), access)
}

// RegMRIOVA is RegMR with an address of the caller's choice for the first byte: ibv_reg_mr_iova.
func (p *PD) RegMRIOVA(ctx context.Context, mem []byte, iova uint64, access Access) (*MR, error) {
	return created(ctx, "register MR", func() (*MR, error) { return p.regMR(mem, iova, access) })
}

func (p *PD) regMR(mem []byte, iova uint64, access Access) (*MR, error) {
	m := &MR{ctx: p.ctx, iova: iova, length: uint64(len(mem)), mem: mem}
	req := abi.RegMRRequest{
		PD: p.handle, Memory: abi.MemoryProcess, Access: uint32(access), IOVA: iova, Length: m.length,
		Address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))),
	}
	var fds []int
	if m.buffer, req.Offset = p.ctx.bufferOf(mem); m.buffer != nil {
		m.buffer.hold()
		req.Memory, fds = abi.MemoryMapped, []int{m.buffer.fd}
	} else if len(mem) > 0 {
		m.pinner.Pin(unsafe.SliceData(mem))
	}
	err := m.register(req, fds)
	if errors.Is(err, syscall.EPERM) {
		err = m.registerSelf(req)
	}
	if err != nil {
		m.abandon()
		return nil, err
	}
	return adopted(p.ctx, m)
}

// RegMRFile registers length bytes of a memfd, from offset on. The NIC maps the file and seals it
// against shrinking and against holes (F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE): mappings of it remain,
// but no process can map it writable again or write to it otherwise. A second region of the file
// can only be registered in the same Context, and while the first one is open. The file may be
// closed afterwards. For files that must not be sealed, and those in a tmpfs, see [PD.RegDMABuf].
func (p *PD) RegMRFile(ctx context.Context, f *os.File, offset, length, iova uint64, access Access) (*MR, error) {
	return p.regFile(ctx, f, abi.RegMRRequest{
		PD: p.handle, Memory: abi.MemoryMapped, Access: uint32(access), IOVA: iova, Length: length, Offset: offset,
	})
}

// regFile registers memory that a file descriptor refers to.
func (p *PD) regFile(ctx context.Context, f *os.File, req abi.RegMRRequest) (*MR, error) {
	fd, err := duplicate(f)
	if err != nil {
		return nil, err
	}
	return created(ctx, "register MR", func() (*MR, error) {
		defer unix.Close(fd)
		m := &MR{ctx: p.ctx, iova: req.IOVA, length: req.Length}
		if err := m.register(req, []int{fd}); err != nil {
			return nil, err
		}
		return adopted(p.ctx, m)
	})
}

// duplicate returns a descriptor of f for a request, which may be sent after the caller has closed
// f.
func duplicate(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
}

func (m *MR) register(req abi.RegMRRequest, fds []int) error {
	var got abi.RegMRReply
	_, err := m.ctx.call(control.Request{Name: "register MR", Op: abi.OpRegMR, Body: []any{req}, FDs: fds, Reply: &got})
	m.handle, m.lkey, m.rkey, m.kind = got.Handle, got.LKey, got.RKey, got.Memory
	return err
}

// registerSelf registers memory when the daemon lacks the right to access this process: it passes
// /proc/self/mem.
func (m *MR) registerSelf(req abi.RegMRRequest) error {
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	req.Memory, req.Offset = abi.MemorySelf, 0
	return m.register(req, []int{int(f.Fd())})
}

// Bytes returns the registered memory; nil for RegMRFile.
func (m *MR) Bytes() []byte { return m.mem }

// Addr returns the address of the first byte, for SGEs and for peers.
func (m *MR) Addr() uint64 { return m.iova }

// Length returns the size in bytes.
func (m *MR) Length() uint64 { return m.length }

// LKey returns the key for SGEs.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key for peers.
func (m *MR) RKey() uint32 { return m.rkey }

// Mapped reports whether the NIC has mapped the memory. Otherwise it accesses it in this process.
func (m *MR) Mapped() bool { return m.kind == abi.MemoryMapped }

// SGE returns a scatter/gather element of length bytes from offset on.
func (m *MR) SGE(offset, length int) SGE {
	return SGE{Addr: m.iova + uint64(offset), Length: uint32(length), LKey: m.lkey}
}

// Close deregisters the region. Work requests that still use it fail.
func (m *MR) Close(ctx context.Context) error {
	return m.ctx.closeObject(ctx, m, "deregister MR", abi.OpDeregMR, m.handle, nil)
}

// abandonAfter keeps the memory pinned until released is closed.
func (m *MR) abandonAfter(released <-chan struct{}) {
	<-released
	m.abandon()
}

func (m *MR) abandon() {
	m.pinner.Unpin()
	if m.buffer != nil {
		m.buffer.regions.Add(-1)
	}
}
