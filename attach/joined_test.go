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

// host returns a raw client and the descriptor of its doorbell page.
func host(t *testing.T, f *fabrictest.Fabric) (*raw, int) {
	t.Helper()
	r := &raw{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.good(abi.OpHello, nil, abi.HelloRequest{})
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

// guest returns a raw client that has joined a context.
func guest(t *testing.T, f *fabrictest.Fabric, page int) *raw {
	t.Helper()
	r := &raw{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.good(abi.OpHello, nil, abi.HelloRequest{})
	r.good(abi.OpJoinDevice, []int{page})
	return r
}

func TestThoseWhoJoinAContextShareItsObjects(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := host(t, f)
	pd := handleOf(h.good(abi.OpAllocPD, nil))
	g := guest(t, f, page)

	mem := make([]byte, 4096)
	ask := abi.RegMRRequest{PD: pd, Memory: abi.MemoryProcess, Access: 1, IOVA: 1 << 20, Length: 4096, Address: uint64(uintptr(unsafe.Pointer(&mem[0])))}
	g.bad("memory by its address", syscall.EPERM, g.ask(abi.OpRegMR, nil, ask))
	ask.Memory = abi.MemorySelf
	mr := handleOf(g.good(abi.OpRegMR, []int{openFile(t, "/proc/self/mem")}, ask))
	var seen abi.QueryMRReply
	if _, err := abi.Decode(h.good(abi.OpQueryMR, nil, abi.HandleRequest{Handle: mr}).Body, &seen); err != nil || seen.IOVA != 1<<20 || seen.Length != 4096 {
		t.Errorf("the host sees %+v, %v", seen, err)
	}
	h.bad("a PD that a guest uses", syscall.EBUSY, h.ask(abi.OpDeallocPD, nil, abi.HandleRequest{Handle: pd}))

	// A guest that goes leaves what it has made; another one can go on with it.
	g.sock.Close()
	other := guest(t, f, page)
	other.good(abi.OpDeregMR, nil, abi.HandleRequest{Handle: mr})
	h.good(abi.OpDeallocPD, nil, abi.HandleRequest{Handle: pd})

	// With the host the context ends.
	h.sock.Close()
	p, err := other.receive()
	if err != nil || p.Header.Op != abi.OpGoodbye || syscall.Errno(p.Header.Errno) != syscall.ESHUTDOWN {
		t.Errorf("a guest hears %+v, %v; want a goodbye", p.Header, err)
	}
	if _, err := other.receive(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("and then %v", err)
	}
	late := &raw{t: t, sock: f.Connect()}
	late.good(abi.OpHello, nil, abi.HelloRequest{})
	late.bad("the context that has ended", syscall.EINVAL, late.ask(abi.OpJoinDevice, []int{page}))
	late.sock.Close()
}

func TestOnlyADoorbellPageOpensAContext(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := host(t, f)
	r := &raw{t: t, sock: f.Connect()}
	t.Cleanup(func() { r.sock.Close() })
	r.good(abi.OpHello, nil, abi.HelloRequest{})
	r.bad("no descriptor", syscall.EINVAL, r.ask(abi.OpJoinDevice, nil))
	r.bad("a file", syscall.EINVAL, r.ask(abi.OpJoinDevice, []int{openFile(t, os.DevNull)}))
	r.bad("other memory", syscall.EINVAL, r.ask(abi.OpJoinDevice, []int{memfd(t, abi.DoorbellSize, unix.MFD_ALLOW_SEALING)}))
	r.bad("still nothing is open", syscall.ENODEV, r.ask(abi.OpAllocPD, nil))
	r.good(abi.OpJoinDevice, []int{page})
	r.bad("a second context", syscall.EBUSY, r.ask(abi.OpJoinDevice, []int{page}))
	r.bad("a device besides", syscall.EBUSY, r.ask(abi.OpOpenDevice, nil, abi.OpenDeviceRequest{}))
	h.bad("a host that joins itself", syscall.EBUSY, h.ask(abi.OpJoinDevice, []int{page}))
}
