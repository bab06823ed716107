package verbs

import (
	"context"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// PD is a protection domain: ibv_pd. Queue pairs reach only memory of their own PD.
type PD struct {
	ctx    *Context
	handle uint32
}

// AllocPD creates a protection domain.
func (c *Context) AllocPD(ctx context.Context) (*PD, error) {
	return created(ctx, "allocate PD", func() (*PD, error) {
		h, err := c.create("allocate PD", abi.OpAllocPD)
		if err != nil {
			return nil, err
		}
		return adopted(c, &PD{c, h})
	})
}

// Context returns where the PD came from.
func (p *PD) Context() *Context { return p.ctx }

func (p *PD) abandon() {}

// Close deallocates the PD; EBUSY while something uses it.
func (p *PD) Close(ctx context.Context) error {
	return control.AwaitError(ctx, "deallocate PD", func() error {
		p.ctx.dropIdleAHs(p.handle)
		return p.ctx.closeObject(context.Background(), p, "deallocate PD", abi.OpDeallocPD, p.handle, nil)
	})
}
