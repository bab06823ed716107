package attach_test

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/fabrictest"
)

const zeroBased = 1 << 5

func TestMalformedDeviceMemoryRequestsGetErrors(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r, other := connect(t, f), connect(t, f)
	pd := handleOf(r.mustCall(abi.OpAllocPD, nil))
	dm := handleOf(r.mustCall(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 100}))
	for range 3 {
		other.mustCall(abi.OpAllocPD, nil)
	}
	foreign := handleOf(other.mustCall(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 100})) // a handle that r does not have
	mem := memfd(t, 8192, unix.MFD_ALLOW_SEALING)
	region := abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased | 1, Length: 100, Address: uint64(dm)}
	mr := handleOf(r.mustCall(abi.OpRegMR, nil, region))
	for _, c := range []struct {
		name string
		want syscall.Errno
		op   uint16
		fds  []int
		body []any
	}{
		{"more bytes than a message copies", syscall.EINVAL, abi.OpCopyToDM, nil,
			[]any{abi.CopyDMRequest{Handle: dm, Length: abi.DMCopyMax + 1}, make([]byte, abi.DMCopyMax+1)}},
		{"more bytes than a message copies", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 1<<32 - 4}}},
		{"fewer bytes than the request says", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 8}, uint32(0)}},
		{"more bytes than the request says", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4}, uint64(0)}},
		{"unexpected bytes", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4}, uint32(0)}},
		{"bytes behind the end", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4, Offset: 100}, uint32(0)}},
		{"bytes behind the end", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4, Offset: 1<<64 - 4}}},
		{"copying to a PD", syscall.ENOENT, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: pd}}},
		{"copying from the device memory of another client", syscall.ENOENT, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: foreign, Length: 4}}},
		{"querying the device memory of another client", syscall.ENOENT, abi.OpQueryDM, nil, []any{abi.HandleRequest{Handle: foreign}}},
		{"freeing the device memory of another client", syscall.ENOENT, abi.OpFreeDM, nil, []any{abi.HandleRequest{Handle: foreign}}},
		{"freeing registered device memory", syscall.EBUSY, abi.OpFreeDM, nil, []any{abi.HandleRequest{Handle: dm}}},
		{"registering the device memory of another client", syscall.ENOENT, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Address: uint64(foreign)}}},
		{"a handle of 33 bits", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Address: 1<<32 | uint64(dm)}}},
		{"reregistering device memory", syscall.EOPNOTSUPP, abi.OpReregMR, nil, []any{abi.ReregMRRequest{Handle: mr, MR: region}}},
		{"a DMA buffer without its descriptor", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 8}}},
		{"more than a client may register", syscall.ENOMEM, abi.OpRegMR, []int{mem},
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 1 << 60}}},
	} {
		r.wantErrno(c.name, c.want, r.call(c.op, c.fds, c.body...))
	}
	r.mustCall(abi.OpDeregMR, nil, abi.HandleRequest{Handle: mr})
	r.mustCall(abi.OpFreeDM, nil, abi.HandleRequest{Handle: dm})
	other.mustCall(abi.OpFreeDM, nil, abi.HandleRequest{Handle: foreign})
}

func TestJoinedConnectionsShareDeviceMemory(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := openContext(t, f)
	g := joinContext(t, f, page)
	pd := handleOf(h.mustCall(abi.OpAllocPD, nil))
	dm := handleOf(g.mustCall(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 64}))
	h.mustCall(abi.OpCopyToDM, nil, abi.CopyDMRequest{Handle: dm, Length: 8, Offset: 8}, []byte("together"))
	if p := g.mustCall(abi.OpCopyFromDM, nil, abi.CopyDMRequest{Handle: dm, Length: 8, Offset: 8}); string(p.Body) != "together" {
		t.Errorf("read %q from device memory", p.Body)
	}
	var seen abi.QueryDMReply
	if _, err := abi.Decode(g.mustCall(abi.OpQueryDM, nil, abi.HandleRequest{Handle: dm}).Body, &seen); err != nil || seen.Length != 64 {
		t.Errorf("the query returned %+v, %v", seen, err)
	}
	g.mustCall(abi.OpRegMR, nil, abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Length: 64, Address: uint64(dm)})
	mem := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	g.mustCall(abi.OpRegMR, []int{mem}, abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 4096, Access: 1})
}
