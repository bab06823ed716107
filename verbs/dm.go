package verbs

import (
	"bytes"
	"context"
	"os"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// DM is device memory: ibv_dm. It is memory of the NIC, which a program copies to and from; work
// requests and peers access it through regions.
type DM struct {
	ctx    *Context
	handle uint32
	length uint64
}

// AllocDM allocates length bytes of zeroed device memory: ibv_alloc_dm. Its address in the NIC is a
// multiple of 2^logAlign (12 at most), which matters to atomics; 3 is enough. Errors: EINVAL, and
// ENOMEM beyond DeviceAttr.MaxDMSize in total or when the NIC has no more.
func (c *Context) AllocDM(ctx context.Context, length uint64, logAlign uint32) (*DM, error) {
	return created(ctx, "allocate DM", func() (*DM, error) {
		handle, err := c.create("allocate DM", abi.OpAllocDM, abi.AllocDMRequest{Length: length, LogAlign: logAlign})
		if err != nil {
			return nil, err
		}
		return adopted(c, &DM{ctx: c, handle: handle, length: length})
	})
}

// Length returns the size in bytes.
func (m *DM) Length() uint64 { return m.length }

// CopyTo stores p in device memory from offset on: ibv_memcpy_to_dm. Both offset and the length of
// p are multiples of 4, and the range lies inside the memory: otherwise EINVAL, and nothing is
// copied. If ctx ends first, a part may have been copied.
func (m *DM) CopyTo(ctx context.Context, offset uint64, p []byte) error {
	return m.copy(offset, p, func(req abi.CopyDMRequest, p []byte) error {
		return m.ctx.request(ctx, "copy to DM", abi.OpCopyToDM, req, bytes.Clone(p))
	})
}

// CopyFrom fills p with what device memory holds from offset on: ibv_memcpy_from_dm. The rules are
// those of CopyTo.
func (m *DM) CopyFrom(ctx context.Context, p []byte, offset uint64) error {
	return m.copy(offset, p, func(req abi.CopyDMRequest, p []byte) error {
		got, err := control.Await(ctx, "copy from DM", func() ([]byte, error) {
			b := make([]byte, req.Length)
			_, err := m.ctx.call(control.Request{Name: "copy from DM", Op: abi.OpCopyFromDM, Body: []any{req}, Reply: b})
			return b, err
		}, nil)
		copy(p, got)
		return err
	})
}

// copy makes a request for each part of p that fits into a message. It starts with the last part,
// the only one that can be out of range, so that nothing is copied in that case.
func (m *DM) copy(offset uint64, p []byte, f func(abi.CopyDMRequest, []byte) error) error {
	if offset > m.length {
		return &Error{Op: "copy to or from DM", Errno: syscall.EINVAL, Text: "the offset is beyond the end"}
	}
	for {
		start := (max(len(p), 1) - 1) / abi.DMCopyMax * abi.DMCopyMax
		piece := p[start:]
		req := abi.CopyDMRequest{Handle: m.handle, Length: uint32(len(piece)), Offset: offset + uint64(start)}
		if err := f(req, piece); err != nil || start == 0 {
			return err
		}
		p = p[:start]
	}
}

// Close frees the memory: ibv_free_dm. EBUSY while regions of it are registered.
func (m *DM) Close(ctx context.Context) error {
	return m.ctx.closeObject(ctx, m, "free DM", abi.OpFreeDM, m.handle, nil)
}

func (m *DM) abandon() {}

// RegDM registers length bytes of device memory from offset on: ibv_reg_dm_mr. SGEs and peers
// address them from 0 on; access must include AccessZeroBased.
func (p *PD) RegDM(ctx context.Context, m *DM, offset, length uint64, access Access) (*MR, error) {
	req := abi.RegMRRequest{PD: p.handle, Memory: abi.MemoryDevice, Access: uint32(access), Length: length,
		Address: uint64(m.handle), Offset: offset}
	return created(ctx, "register MR", func() (*MR, error) {
		r := &MR{ctx: p.ctx, length: length}
		if err := r.register(req, nil); err != nil {
			return nil, err
		}
		return adopted(p.ctx, r)
	})
}

// RegDMABuf registers length bytes of a DMA buffer from offset on: ibv_reg_dmabuf_mr. f may also be
// shared memory (a memfd). iova is the address of the first byte for SGEs and peers; it has the
// same offset in a page of 4096 bytes as offset. The NIC accesses the present contents of the
// buffer: work requests that access a truncated part fail. The file may be closed afterwards.
//
// access is a combination of AccessLocalWrite, AccessRemoteWrite, AccessRemoteRead,
// AccessRemoteAtomic and AccessRelaxedOrdering. Errors: EINVAL, also for a file that is neither a
// DMA buffer nor shared memory; EACCES if the file is read-only and access is not; EOPNOTSUPP for a
// DMA buffer that cannot be mapped.
func (p *PD) RegDMABuf(ctx context.Context, f *os.File, offset, length, iova uint64, access Access) (*MR, error) {
	return p.regFile(ctx, f, abi.RegMRRequest{
		PD: p.handle, Memory: abi.MemoryDMABuf, Access: uint32(access), IOVA: iova, Length: length, Offset: offset,
	})
}
