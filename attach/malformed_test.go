package attach_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A rawClient sends requests of any form.
type rawClient struct {
	t    *testing.T
	sock *net.UnixConn
	tag  uint64
}

// connect returns a client that has sent hello and opened nic0.
func connect(t *testing.T, f *fabrictest.Fabric) *rawClient {
	t.Helper()
	r := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	r.mustCall(abi.OpOpenDevice, nil, abi.OpenDeviceRequest{})
	return r
}

func (r *rawClient) send(h abi.Header, fds []int, body ...any) {
	r.t.Helper()
	r.tag++
	h.Tag = r.tag
	if err := control.Write(r.sock, abi.Message(nil, h, body...), fds...); err != nil {
		r.t.Fatalf("send: %v", err)
	}
}

func (r *rawClient) receive() (control.Packet, error) {
	r.sock.SetReadDeadline(time.Now().Add(10 * time.Second))
	p, err := control.Read(r.sock, make([]byte, abi.MaxMessage))
	p.CloseFDs()
	return p, err
}

func (r *rawClient) call(op uint16, fds []int, body ...any) control.Packet {
	r.t.Helper()
	r.send(abi.Header{Version: abi.Version, Op: op, FDs: uint32(len(fds))}, fds, body...)
	return r.reply()
}

func (r *rawClient) reply() control.Packet {
	r.t.Helper()
	p, err := r.receive()
	if err != nil || p.Header.Tag != r.tag {
		r.t.Fatalf("reply %+v, %v", p.Header, err)
	}
	return p
}

func (r *rawClient) mustCall(op uint16, fds []int, body ...any) control.Packet {
	r.t.Helper()
	p := r.call(op, fds, body...)
	if p.Header.Errno != 0 {
		r.t.Fatalf("operation %d: %v: %s", op, syscall.Errno(p.Header.Errno), p.Body)
	}
	return p
}

func (r *rawClient) wantErrno(what string, want syscall.Errno, p control.Packet) {
	r.t.Helper()
	if got := syscall.Errno(p.Header.Errno); got != want || len(p.Body) == 0 {
		r.t.Errorf("%s: got %v %q, want %v", what, got, p.Body, want)
	}
}

func handleOf(p control.Packet) uint32 { return binary.LittleEndian.Uint32(p.Body) }

func openFile(t *testing.T, name string) int {
	t.Helper()
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func memfd(t *testing.T, size int64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestMalformedRequestsGetErrors(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r, other := connect(t, f), connect(t, f)
	foreign := handleOf(other.mustCall(abi.OpAllocPD, nil))
	for range 3 {
		foreign = handleOf(other.mustCall(abi.OpAllocPD, nil)) // a handle that r does not have
	}
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	null := openFile(t, os.DevNull)
	mem := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	region := abi.RegMRRequest{PD: pd, Memory: abi.MemoryMapped, Access: 1, Length: 4096}
	change := func(f func(*abi.RegMRRequest)) abi.RegMRRequest {
		v := region
		f(&v)
		return v
	}

	r.send(abi.Header{Version: abi.Version + 1, Op: abi.OpAllocPD}, nil)
	r.wantErrno("another version", syscall.EPROTONOSUPPORT, r.reply())
	r.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR, FDs: 0}, []int{mem}, region)
	r.wantErrno("a descriptor that the header does not count", syscall.EINVAL, r.reply())
	r.send(abi.Header{Version: abi.Version, Op: abi.OpRegMR, FDs: 1}, nil, region)
	r.wantErrno("a descriptor that is missing", syscall.EMFILE, r.reply())

	for _, c := range []struct {
		name string
		want syscall.Errno
		op   uint16
		fds  []int
		body []any
	}{
		{"an unknown operation", syscall.EOPNOTSUPP, 999, nil, nil},
		{"a body that is too short", syscall.EINVAL, abi.OpRegMR, nil, []any{uint32(1)}},
		{"a body that is too long", syscall.EINVAL, abi.OpAllocPD, nil, []any{uint32(1)}},
		{"unexpected descriptors", syscall.EINVAL, abi.OpAllocPD, []int{null, null}, nil},
		{"too many descriptors", syscall.EINVAL, abi.OpRegMR, []int{mem, mem}, []any{region}},
		{"more descriptors than any message has", syscall.EINVAL, abi.OpRegMR,
			[]int{null, null, null, null, null, null, null, null, null, null, null, null}, []any{region}},
		{"a second device", syscall.EBUSY, abi.OpOpenDevice, nil, []any{abi.OpenDeviceRequest{}}},
		{"a handle of another client", syscall.ENOENT, abi.OpDeallocPD, nil, []any{abi.HandleRequest{Handle: foreign}}},
		{"a handle of another kind", syscall.ENOENT, abi.OpDestroyQP, nil, []any{abi.HandleRequest{Handle: pd}}},
		{"the handle 0", syscall.ENOENT, abi.OpDestroyCQ, nil, []any{abi.HandleRequest{}}},
		{"memory without its descriptor", syscall.EINVAL, abi.OpRegMR, nil, []any{region}},
		{"memory beyond the end of its file", syscall.EINVAL, abi.OpRegMR, []int{mem},
			[]any{change(func(v *abi.RegMRRequest) { v.Length = 4097 })}},
		{"memory whose end wraps", syscall.EINVAL, abi.OpRegMR, []int{mem},
			[]any{change(func(v *abi.RegMRRequest) { v.Offset = 1<<64 - 4096 })}},
		{"memory at an address whose end wraps", syscall.EINVAL, abi.OpRegMR, []int{mem},
			[]any{change(func(v *abi.RegMRRequest) { v.IOVA = 1<<64 - 1 })}},
		{"a descriptor that cannot be mapped", syscall.EINVAL, abi.OpRegMR, []int{null}, []any{region}},
		{"a descriptor that is not a process's memory", syscall.EINVAL, abi.OpRegMR, []int{null},
			[]any{change(func(v *abi.RegMRRequest) { v.Memory, v.Address = abi.MemorySelf, 4096 })}},
		{"an unmapped address", syscall.EFAULT, abi.OpRegMR, nil,
			[]any{change(func(v *abi.RegMRRequest) { v.Memory, v.Address = abi.MemoryProcess, 4096 })}},
		{"an unknown kind of memory", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{change(func(v *abi.RegMRRequest) { v.Memory = 9 })}},
		{"the whole address space", syscall.ENOMEM, abi.OpRegMR, nil,
			[]any{change(func(v *abi.RegMRRequest) { v.Memory, v.Length = abi.MemoryProcess, 1<<64-1 })}},
		{"unknown access flags", syscall.EINVAL, abi.OpRegMR, []int{mem},
			[]any{change(func(v *abi.RegMRRequest) { v.Access = 1 << 31 })}},
		{"holding no memory", syscall.EINVAL, abi.OpHoldMemory, nil, nil},
		{"holding what is no memory", syscall.EINVAL, abi.OpHoldMemory, []int{null}, nil},
		{"releasing what is not held", syscall.ENOENT, abi.OpReleaseMemory, nil, []any{abi.HandleRequest{Handle: pd}}},
		{"a CQ of no entries", syscall.EINVAL, abi.OpCreateCQ, nil, []any{abi.CreateCQRequest{}}},
		{"a CQ of too many entries", syscall.EINVAL, abi.OpCreateCQ, nil, []any{abi.CreateCQRequest{Entries: 1<<32 - 1}}},
		{"a CQ with unknown flags", syscall.EINVAL, abi.OpCreateCQ, nil, []any{abi.CreateCQRequest{Entries: 1, Flags: 4}}},
		{"a QP without CQs", syscall.ENOENT, abi.OpCreateQP, nil, []any{abi.CreateQPRequest{PD: pd, Type: 2}}},
		{"a capture without a file", syscall.EOPNOTSUPP, abi.OpStartCapture, nil, []any{abi.StartCaptureRequest{}}},
		{"the state without a capture", syscall.ENOENT, abi.OpQueryCapture, nil, nil},
		{"an address handle without an address", syscall.EINVAL, abi.OpCreateAH, nil, []any{abi.CreateAHRequest{PD: pd}}},
	} {
		r.wantErrno(c.name, c.want, r.call(c.op, c.fds, c.body...))
	}
	r.mustCall(abi.OpRegMR, []int{memfd(t, 4096, unix.MFD_ALLOW_SEALING)}, region)
	other.mustCall(abi.OpDeallocPD, nil, abi.HandleRequest{Handle: foreign})
}

func TestRequestsBeforeHelloFail(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := &rawClient{t: t, sock: f.Connect()}
	defer r.sock.Close()
	r.wantErrno("opening a device", syscall.EPROTO, r.call(abi.OpOpenDevice, nil, abi.OpenDeviceRequest{}))
	r.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	r.wantErrno("allocating a PD before a device is open", syscall.ENODEV, r.call(abi.OpAllocPD, nil))
}

// wantGoodbye expects a goodbye with an errno, and then the end of the connection.
func (r *rawClient) wantGoodbye(want syscall.Errno, reason string) {
	r.t.Helper()
	p, err := r.receive()
	if err != nil || p.Header.Op != abi.OpGoodbye || syscall.Errno(p.Header.Errno) != want || !strings.Contains(string(p.Body), reason) {
		r.t.Errorf("goodbye %+v %q, %v", p.Header, p.Body, err)
	}
	if p, err := r.receive(); !errors.Is(err, io.EOF) {
		r.t.Errorf("after the goodbye: %+v, %v", p.Header, err)
	}
}

func TestMalformedMessageClosesTheConnection(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	for name, bytes := range map[string][]byte{
		"shorter than a header":        {1, 2, 3},
		"a length that is not its own": abi.Append(nil, abi.Header{Version: abi.Version, Length: 99}),
		"longer than any message":      make([]byte, abi.MaxMessage+1),
	} {
		t.Run(name, func(t *testing.T) {
			r := connect(t, f)
			null := openFile(t, os.DevNull)
			if err := control.Write(r.sock, bytes, null); err != nil {
				t.Fatal(err)
			}
			r.wantGoodbye(syscall.EPROTO, "message")
		})
	}
	// The server removes the client after it closed the connection.
	for deadline := time.Now().Add(time.Minute); len(f.Server.Snapshot().Clients) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients are left", len(f.Server.Snapshot().Clients))
		}
	}
}

func TestCorruptRingClosesOnlyItsContext(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	x, y := verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	client, err := control.NewClient(context.Background(), f.Connect())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	call := func(op uint16, want int, reply any, body ...any) []int {
		t.Helper()
		p, err := client.Call(context.Background(), control.Request{Name: "call", Op: op, Body: body, Reply: reply, Want: want})
		if err != nil {
			t.Fatal(err)
		}
		fds := p.FDs
		t.Cleanup(func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		})
		return fds
	}
	open := call(abi.OpOpenDevice, 4, nil, abi.OpenDeviceRequest{})
	var pd abi.HandleReply
	var cq abi.CreateCQReply
	var qp abi.CreateQPReply
	call(abi.OpAllocPD, 0, &pd)
	call(abi.OpCreateCQ, 1, &cq, abi.CreateCQRequest{Entries: 4})
	rings := call(abi.OpCreateQP, 1, &qp, abi.CreateQPRequest{PD: pd.Handle, SendCQ: cq.Handle, RecvCQ: cq.Handle, Type: 2,
		Cap: abi.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	if err := unix.Ftruncate(rings[0], 0); err == nil {
		t.Error("a client could shrink a ring")
	}
	peer := y.Info
	attr := abi.QPAttr{State: 1, PortNum: 1}
	modify := func(mask uint32) {
		call(abi.OpModifyQP, 0, nil, abi.ModifyQPRequest{Handle: qp.Handle, Mask: mask, Attr: attr})
	}
	modify(1 | 1<<3 | 1<<4 | 1<<5)
	attr.State, attr.PathMTU, attr.DestQPN = 2, 3, peer.QPN
	attr.AH = abi.AHAttr{DGID: peer.GID, SGIDIndex: 1, PortNum: 1, IsGlobal: 1}
	modify(1 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20)
	attr.State = 3
	modify(1 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<16)

	chunk, err := unix.Mmap(rings[0], 0, int(qp.Chunk.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(chunk)
	sq := chunk[qp.SendRing:]
	doorbells, err := unix.Mmap(open[0], 0, abi.DoorbellSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(doorbells)
	binary.LittleEndian.PutUint32(sq[abi.RingProducer:], 1000) // of a ring with four slots
	for i := abi.DoorbellBits; i < len(doorbells); i++ {
		doorbells[i] = 0xff // rings every doorbell
	}
	unix.Write(open[1], []byte{1, 0, 0, 0, 0, 0, 0, 0})

	select {
	case <-client.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the connection was not closed")
	}
	if err := client.Err(); !errors.Is(err, control.ErrGone) || !strings.Contains(err.Error(), "producer index 1000") {
		t.Errorf("reason: %v", err)
	}
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 100), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Completion()
}

func TestUnsealableMemoryIsAccessedInTheProcess(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	register := func(fd int) abi.RegMRReply {
		t.Helper()
		mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(mem) })
		var got abi.RegMRReply
		p := r.mustCall(abi.OpRegMR, []int{fd}, abi.RegMRRequest{PD: pd, Memory: abi.MemoryMapped, Access: 1, Length: 4096, Address: addressOf(mem)})
		if _, err := abi.Decode(p.Body, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	sealed := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	if got := register(sealed); got.Memory != abi.MemoryMapped {
		t.Errorf("sealable memory is accessed as kind %d", got.Memory)
	}
	if err := unix.Ftruncate(sealed, 0); err == nil {
		t.Error("a client could shrink mapped memory")
	}
	if got := register(memfd(t, 4096, 0)); got.Memory != abi.MemoryProcess {
		t.Errorf("unsealable memory is accessed as kind %d", got.Memory)
	}
	self := openFile(t, "/proc/self/mem")
	buf := make([]byte, 4096)
	p := r.mustCall(abi.OpRegMR, []int{self}, abi.RegMRRequest{PD: pd, Memory: abi.MemorySelf, Access: 1, Length: 4096, Address: addressOf(buf)})
	var got abi.RegMRReply
	if abi.Decode(p.Body, &got); got.Memory != abi.MemorySelf {
		t.Errorf("memory through /proc/self/mem is accessed as kind %d", got.Memory)
	}
}

func TestHeldMemoryCanBeRegisteredAgain(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	fd := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	held := handleOf(r.mustCall(abi.OpHoldMemory, []int{fd}))
	region := abi.RegMRRequest{PD: pd, Memory: abi.MemoryMapped, Access: 1, Length: 4096}
	for range 2 {
		r.mustCall(abi.OpDeregMR, nil, abi.HandleRequest{Handle: handleOf(r.mustCall(abi.OpRegMR, []int{fd}, region))})
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != unix.EPERM {
		t.Errorf("punching a hole in memory that is held: %v", err)
	}
	r.mustCall(abi.OpReleaseMemory, nil, abi.HandleRequest{Handle: held})
	r.wantErrno("memory that is no longer held", syscall.EINVAL, r.call(abi.OpRegMR, []int{fd}, region))
}

func TestRegistrationsOfAFileShareOneMapping(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r := connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	fd, err := unix.MemfdCreate("registered-often", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 64<<20); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		r.mustCall(abi.OpRegMR, []int{fd}, abi.RegMRRequest{PD: pd, Memory: abi.MemoryMapped, Access: 1 | 1<<6, Length: 64 << 20})
	}
	mappings := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(maps), "memfd:registered-often")
	}
	if n := mappings(); n != 1 {
		t.Errorf("1000 registrations use %d mappings", n)
	}
	r.sock.Close()
	for deadline := time.Now().Add(time.Minute); mappings() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the file is mapped after its client has left")
		}
	}
}
