package verbs

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// XRCD is an XRC domain: ibv_xrcd. It associates target queue pairs with the shared receive queues
// that requests name, also across processes.
type XRCD struct {
	ctx    *Context
	handle uint32
}

// OpenXRCD opens the XRC domain of a file or, if file is nil, one that only this Context uses:
// ibv_open_xrcd. Flags are os.O_CREATE and os.O_EXCL. Errors: ENOENT, EEXIST, EINVAL.
func (c *Context) OpenXRCD(ctx context.Context, file *os.File, flags int) (*XRCD, error) {
	var req abi.OpenXRCDRequest
	if flags&os.O_CREATE != 0 {
		req.Flags |= abi.XRCDCreate
	}
	if flags&os.O_EXCL != 0 {
		req.Flags |= abi.XRCDExclusive
	}
	var fds []int
	if file != nil {
		fd, err := duplicate(file)
		if err != nil {
			return nil, err
		}
		fds = []int{fd}
	}
	return created(ctx, "open XRCD", func() (*XRCD, error) {
		for _, fd := range fds {
			defer unix.Close(fd)
		}
		var got abi.HandleReply
		_, err := c.call(control.Request{Name: "open XRCD", Op: abi.OpOpenXRCD, Body: []any{req}, FDs: fds, Reply: &got})
		if err != nil {
			return nil, err
		}
		return adopted(c, &XRCD{c, got.Handle})
	})
}

// Close closes the domain; EBUSY while objects of this Context use it.
func (x *XRCD) Close(ctx context.Context) error {
	return x.ctx.closeObject(ctx, x, "close XRCD", abi.OpCloseXRCD, x.handle, nil)
}

func (x *XRCD) abandon() {}

// CreateXRCSRQ creates a shared receive queue that peers address by its Number, through target
// queue pairs of the domain. Its receives use memory of p and complete in cq.
func (p *PD) CreateXRCSRQ(ctx context.Context, a SRQAttr, x *XRCD, cq *CQ) (*SRQ, error) {
	if x == nil || cq == nil {
		return nil, &Error{Op: "create SRQ", Errno: syscall.EINVAL, Text: "an SRQ for XRC needs an XRCD and a CQ"}
	}
	return p.createSRQ(ctx, abi.CreateSRQRequest{PD: p.handle, Type: abi.SRQXRC, XRCD: x.handle, CQ: cq.handle, Attr: a.abi()})
}

// CreateQP creates a target queue pair (type XRCRecv) in state RESET. It has no queues; its
// messages complete in the CQ of an SRQ.
func (x *XRCD) CreateQP(ctx context.Context) (*QP, error) {
	return x.ctx.createQP(ctx, &QP{ctx: x.ctx, qpType: XRCRecv}, abi.CreateQPRequest{Type: uint32(XRCRecv), XRCD: x.handle}, 0)
}
