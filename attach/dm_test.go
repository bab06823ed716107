package attach_test

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/fabrictest"
)

const zeroBased = 1 << 5

func TestWrongRequestsAboutDeviceMemory(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	r, other := connect(t, f), connect(t, f)
	pd := handleOf(r.good(abi.OpAllocPD, nil))
	dm := handleOf(r.good(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 100}))
	for range 3 {
		other.good(abi.OpAllocPD, nil)
	}
	foreign := handleOf(other.good(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 100})) // a number that r does not have
	mem := memfd(t, 8192, unix.MFD_ALLOW_SEALING)
	region := abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased | 1, Length: 100, Address: uint64(dm)}
	mr := handleOf(r.good(abi.OpRegMR, nil, region))
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
		{"fewer bytes than it says", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 8}, uint32(0)}},
		{"more bytes than it says", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4}, uint64(0)}},
		{"bytes where none belong", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4}, uint32(0)}},
		{"bytes behind the end", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4, Offset: 100}, uint32(0)}},
		{"bytes behind the end", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: dm, Length: 4, Offset: 1<<64 - 4}}},
		{"copying to a PD", syscall.EINVAL, abi.OpCopyToDM, nil, []any{abi.CopyDMRequest{Handle: pd}}},
		{"copying from another's", syscall.EINVAL, abi.OpCopyFromDM, nil, []any{abi.CopyDMRequest{Handle: foreign, Length: 4}}},
		{"asking about another's", syscall.EINVAL, abi.OpQueryDM, nil, []any{abi.HandleRequest{Handle: foreign}}},
		{"freeing another's", syscall.EINVAL, abi.OpFreeDM, nil, []any{abi.HandleRequest{Handle: foreign}}},
		{"freeing what is registered", syscall.EBUSY, abi.OpFreeDM, nil, []any{abi.HandleRequest{Handle: dm}}},
		{"registering another's", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Address: uint64(foreign)}}},
		{"a handle of 33 bits", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Address: 1<<32 | uint64(dm)}}},
		{"registering it anew", syscall.EOPNOTSUPP, abi.OpReregMR, nil, []any{abi.ReregMRRequest{Handle: mr, MR: region}}},
		{"a DMA buffer without its descriptor", syscall.EINVAL, abi.OpRegMR, nil,
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 8}}},
		{"more than a client may register", syscall.ENOMEM, abi.OpRegMR, []int{mem},
			[]any{abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 1 << 60}}},
	} {
		r.bad(c.name, c.want, r.ask(c.op, c.fds, c.body...))
	}
	r.good(abi.OpDeregMR, nil, abi.HandleRequest{Handle: mr})
	r.good(abi.OpFreeDM, nil, abi.HandleRequest{Handle: dm})
	other.good(abi.OpFreeDM, nil, abi.HandleRequest{Handle: foreign})
}

func TestThoseWhoJoinAContextShareItsDeviceMemory(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	h, page := host(t, f)
	g := guest(t, f, page)
	pd := handleOf(h.good(abi.OpAllocPD, nil))
	dm := handleOf(g.good(abi.OpAllocDM, nil, abi.AllocDMRequest{Length: 64}))
	h.good(abi.OpCopyToDM, nil, abi.CopyDMRequest{Handle: dm, Length: 8, Offset: 8}, []byte("together"))
	if p := g.good(abi.OpCopyFromDM, nil, abi.CopyDMRequest{Handle: dm, Length: 8, Offset: 8}); string(p.Body) != "together" {
		t.Errorf("%q", p.Body)
	}
	var seen abi.QueryDMReply
	if _, err := abi.Decode(g.good(abi.OpQueryDM, nil, abi.HandleRequest{Handle: dm}).Body, &seen); err != nil || seen.Length != 64 {
		t.Errorf("%+v, %v", seen, err)
	}
	g.good(abi.OpRegMR, nil, abi.RegMRRequest{PD: pd, Memory: abi.MemoryDevice, Access: zeroBased, Length: 64, Address: uint64(dm)})
	mem := memfd(t, 4096, unix.MFD_ALLOW_SEALING)
	g.good(abi.OpRegMR, []int{mem}, abi.RegMRRequest{PD: pd, Memory: abi.MemoryDMABuf, Length: 4096, Access: 1})
}
