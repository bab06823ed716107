package attach_test

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
)

// openContext returns a client that opened nic0, and the descriptor of its doorbell page.
func openContext(t *testing.T, f *fabrictest.Fabric) (*rawClient, int) {
	t.Helper()
	r := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	r.send(abi.Header{Version: abi.Version, Op: abi.OpOpenDevice}, nil, abi.OpenDeviceRequest{})
	p, err := control.Read(r.sock, make([]byte, abi.MaxMessage))
	if err != nil || p.Header.Errno != 0 {
		t.Fatalf("open device: %+v, %v", p.Header, err)
	}
	page := p.Take()
	p.CloseFDs()
	t.Cleanup(func() { unix.Close(page) })
	return r, page
}

// joinContext returns a client that joined a context.
func joinContext(t *testing.T, f *fabrictest.Fabric, page int) *rawClient {
	t.Helper()
	r := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	r.mustCall(abi.OpJoinDevice, []int{page})
	return r
}

func TestJoinedConnectionsShareObjects(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := openContext(t, f)
	pd := handleOf(h.mustCall(abi.OpAllocPD, nil))
	g := joinContext(t, f, page)

	mem := make([]byte, 4096)
	req := abi.RegMRRequest{PD: pd, Memory: abi.MemoryProcess, Access: 1, IOVA: 1 << 20, Length: 4096, Address: uint64(uintptr(unsafe.Pointer(&mem[0])))}
	g.wantErrno("memory by its address", syscall.EPERM, g.call(abi.OpRegMR, nil, req))
	req.Memory = abi.MemorySelf
	mr := handleOf(g.mustCall(abi.OpRegMR, []int{openFile(t, "/proc/self/mem")}, req))
	var seen abi.QueryMRReply
	if _, err := abi.Decode(h.mustCall(abi.OpQueryMR, nil, abi.HandleRequest{Handle: mr}).Body, &seen); err != nil || seen.IOVA != 1<<20 || seen.Length != 4096 {
		t.Errorf("the owner sees %+v, %v", seen, err)
	}
	h.wantErrno("a PD that a joined connection uses", syscall.EBUSY, h.call(abi.OpDeallocPD, nil, abi.HandleRequest{Handle: pd}))

	// Objects outlive the joined connection that created them.
	g.sock.Close()
	other := joinContext(t, f, page)
	other.mustCall(abi.OpDeregMR, nil, abi.HandleRequest{Handle: mr})
	h.mustCall(abi.OpDeallocPD, nil, abi.HandleRequest{Handle: pd})

	// The context ends with its owner.
	h.sock.Close()
	p, err := other.receive()
	if err != nil || p.Header.Op != abi.OpGoodbye || syscall.Errno(p.Header.Errno) != syscall.ESHUTDOWN {
		t.Errorf("the joined connection received %+v, %v; want a goodbye", p.Header, err)
	}
	if _, err := other.receive(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the goodbye: %v, want EOF", err)
	}
	late := &rawClient{t: t, sock: f.Connect()}
	late.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	late.wantErrno("a context that has ended", syscall.EINVAL, late.call(abi.OpJoinDevice, []int{page}))
	late.sock.Close()
}

// The client of a joined connection maps a chunk when it sees the number for the first time.
func TestChunksOfAJoinedContextHaveOtherNumbers(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	_, page := openContext(t, f)
	g := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { g.sock.Close() })
	g.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	var joined abi.OpenDeviceReply
	if _, err := abi.Decode(g.mustCall(abi.OpJoinDevice, []int{page}).Body, &joined); err != nil {
		t.Fatal(err)
	}
	var cq abi.CreateCQReply
	if _, err := abi.Decode(g.mustCall(abi.OpCreateCQ, nil, abi.CreateCQRequest{Entries: 16}).Body, &cq); err != nil {
		t.Fatal(err)
	}
	if cq.Chunk.Number == joined.Chunk.Number {
		t.Errorf("the event ring of the connection and the CQ of the context are both in chunk %d", cq.Chunk.Number)
	}
}

func TestJoinRequiresADoorbellPage(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := openContext(t, f)
	r := &rawClient{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.mustCall(abi.OpHello, nil, abi.HelloRequest{})
	r.wantErrno("no descriptor", syscall.EINVAL, r.call(abi.OpJoinDevice, nil))
	r.wantErrno("a file", syscall.EINVAL, r.call(abi.OpJoinDevice, []int{openFile(t, os.DevNull)}))
	r.wantErrno("other memory", syscall.EINVAL, r.call(abi.OpJoinDevice, []int{memfd(t, abi.DoorbellSize, unix.MFD_ALLOW_SEALING)}))
	r.wantErrno("a request without a context", syscall.ENODEV, r.call(abi.OpAllocPD, nil))
	r.mustCall(abi.OpJoinDevice, []int{page})
	r.wantErrno("a second context", syscall.EBUSY, r.call(abi.OpJoinDevice, []int{page}))
	r.wantErrno("opening a device", syscall.EBUSY, r.call(abi.OpOpenDevice, nil, abi.OpenDeviceRequest{}))
	h.wantErrno("an owner that joins its own context", syscall.EBUSY, h.call(abi.OpJoinDevice, []int{page}))
}
