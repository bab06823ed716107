package verbs

import (
	"os"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// DM is device memory: ibv_dm. It lies in the NIC; a program reaches it by copying, work requests and peers through
// regions.
type DM struct {
	ctx    *Context
	handle uint32
	length uint64
}

// AllocDM allocates length bytes of device memory, which are zero at first: ibv_alloc_dm. The address in the NIC is a multiple
// of 2^logAlign (12 at most), which is of interest to atomics; 3 will do. Errors: EINVAL, and ENOMEM beyond
// DeviceAttr.MaxDMSize in all, or where the NIC has no more.
func (c *Context) AllocDM(length uint64, logAlign uint32) (*DM, error) {
	handle, err := c.create("allocate DM", abi.OpAllocDM, abi.AllocDMRequest{Length: length, LogAlign: logAlign})
	if err != nil {
		return nil, err
	}
	return adopted(c, &DM{ctx: c, handle: handle, length: length})
}

// Length returns the size in bytes.
func (m *DM) Length() uint64 { return m.length }

// CopyTo stores p in device memory from offset on: ibv_memcpy_to_dm. Both offset and the length of p are multiples of 4, and lie
// inside: else EINVAL, and nothing is copied.
func (m *DM) CopyTo(offset uint64, p []byte) error {
	return m.copy(offset, p, func(ask abi.CopyDMRequest, p []byte) error {
		_, err := m.ctx.call(control.Request{Name: "copy to DM", Op: abi.OpCopyToDM, Body: []any{ask, p}})
		return err
	})
}

// CopyFrom fills p with what device memory holds from offset on: ibv_memcpy_from_dm. The rules are those of CopyTo.
func (m *DM) CopyFrom(p []byte, offset uint64) error {
	return m.copy(offset, p, func(ask abi.CopyDMRequest, p []byte) error {
		_, err := m.ctx.call(control.Request{Name: "copy from DM", Op: abi.OpCopyFromDM, Body: []any{ask}, Reply: p})
		return err
	})
}

// copy makes requests of as much as a message holds. The last comes first: it is the one that can be refused.
func (m *DM) copy(offset uint64, p []byte, f func(abi.CopyDMRequest, []byte) error) error {
	if offset > m.length {
		return &Error{Op: "copy to or from DM", Errno: syscall.EINVAL, Text: "the offset is beyond the end"}
	}
	for {
		start := (max(len(p), 1) - 1) / abi.DMCopyMax * abi.DMCopyMax
		piece := p[start:]
		ask := abi.CopyDMRequest{Handle: m.handle, Length: uint32(len(piece)), Offset: offset + uint64(start)}
		if err := f(ask, piece); err != nil || start == 0 {
			return err
		}
		p = p[:start]
	}
}

// Close frees the memory: ibv_free_dm. EBUSY while regions of it are registered.
func (m *DM) Close() error { return m.ctx.closeObject(m, "free DM", abi.OpFreeDM, m.handle) }

func (m *DM) abandon() {}

// RegDM registers length bytes of device memory from offset on: ibv_reg_dm_mr. SGEs and peers address them from 0 on; access must
// have AccessZeroBased.
func (p *PD) RegDM(m *DM, offset, length uint64, access Access) (*MR, error) {
	r := &MR{ctx: p.ctx, length: length}
	err := r.register(abi.RegMRRequest{PD: p.handle, Memory: abi.MemoryDevice, Access: uint32(access), Length: length,
		Address: uint64(m.handle), Offset: offset}, nil)
	if err != nil {
		return nil, err
	}
	return adopted(p.ctx, r)
}

// RegDMABuf registers length bytes of a DMA buffer from offset on: ibv_reg_dmabuf_mr. Shared memory (a memfd) will do in its
// place. iova is the address of the first byte for SGEs and peers; it lies at the same place in a
// page of 4096 bytes as offset does. The NIC reaches what the buffer has at that moment: what was truncated makes the work fail
// that needs it. The file may be closed afterwards.
//
// access is made of AccessLocalWrite, AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic and AccessRelaxedOrdering. Errors:
// EINVAL, also for what is neither a DMA buffer nor shared memory; EACCES where the file is open for reading
// alone and access is not; EOPNOTSUPP for a DMA buffer that cannot be mapped.
func (p *PD) RegDMABuf(f *os.File, offset, length, iova uint64, access Access) (*MR, error) {
	r := &MR{ctx: p.ctx, iova: iova, length: length}
	err := r.register(abi.RegMRRequest{PD: p.handle, Memory: abi.MemoryDMABuf, Access: uint32(access), IOVA: iova, Length: length,
		Offset: offset}, []int{int(f.Fd())})
	if err != nil {
		return nil, err
	}
	return adopted(p.ctx, r)
}
