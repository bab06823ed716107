package verbs

import "softroce/attach/abi"

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

// AH is an address handle: ibv_ah.
type AH struct {
	ctx    *Context
	handle uint32
}

// CreateAH creates an address handle, for work requests of UD queue pairs.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	h, err := p.ctx.create("create AH", abi.OpCreateAH, abi.CreateAHRequest{PD: p.handle, AH: a.abi()})
	if err != nil {
		return nil, err
	}
	return adopted(p.ctx, &AH{p.ctx, h})
}

func (a *AH) abandon() {}

// Close destroys the address handle.
func (a *AH) Close() error { return a.ctx.closeObject(a, "destroy AH", abi.OpDestroyAH, a.handle) }
