package verbs

import "softroce/internal/abi"

// PD is a protection domain: ibv_pd. Queue pairs reach only memory of their own PD.
type PD struct {
	ctx    *Context
	handle uint32
}

// AllocPD creates a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	h, err := c.create("allocate PD", abi.OpAllocPD)
	if err != nil {
		return nil, err
	}
	return adopted(c, &PD{c, h})
}

// Context returns where the PD came from.
func (p *PD) Context() *Context { return p.ctx }

func (p *PD) abandon() {}

// Close deallocates the PD; EBUSY while something uses it.
func (p *PD) Close() error { return p.ctx.closeObject(p, "deallocate PD", abi.OpDeallocPD, p.handle) }
