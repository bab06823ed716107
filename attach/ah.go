package attach

import (
	"context"
	"errors"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
	"softroce/wire"
)

// flowLabelMask is the range of an IPv6 flow label. As adapter drivers do, createAH ignores the
// bits above it: UCX passes 0xffffffff.
const flowLabelMask = 1<<20 - 1

func addressVectorIn(a *abi.AHAttr) nic.AddressVector {
	return nic.AddressVector{
		DGID: a.DGID, SGIDIndex: int(a.SGIDIndex), Port: int(a.PortNum), HopLimit: a.HopLimit,
		TClass: a.TrafficClass, FlowLabel: a.FlowLabel & flowLabelMask, SL: a.SL, DLID: a.DLID,
		StaticRate: a.StaticRate,
	}
}

// resolve resolves the next hop of an address vector, which may take seconds. It does not wait for
// a peer that requested the connection from its queue pair qpn, if that is not 0.
func (c *conn) resolve(av *nic.AddressVector, qpn uint32) (err error) {
	ctx, cancel := context.WithTimeout(c.ctx, resolveTimeout)
	defer cancel()
	av.Path, err = c.device.ResolveReplyPath(ctx, av, func(p *wire.Path) ([6]byte, bool) {
		return c.server.cm.requesterMAC(c.device, p, qpn)
	})
	return err
}

func (c *conn) createAH(v *abi.CreateAHRequest) (func() (reply, error), error) {
	av := addressVectorIn(&v.AH)
	if err := c.resolve(&av, 0); err != nil {
		return nil, err
	}
	return func() (reply, error) {
		pd, err := lookUp[*nic.PD](&c.objects, v.PD)
		if err != nil {
			return reply{}, err
		}
		// Send work requests name an address handle by the client's handle.
		handle := c.objects.newHandle()
		var ah *nic.AH
		var most int
		c.device.engine.Do(func() {
			ah, err = c.nic.CreateAH(pd, handle, av)
			most = c.nic.QueryDevice().MaxAH
		})
		if err != nil {
			return reply{}, err
		}
		c.objects.m[handle] = ah
		return reply{body: []any{abi.CreateAHReply{Handle: handle, MaxAH: uint32(most)}}}, nil
	}, nil
}

// maxDestroyAH bounds how often destroyAH lets the engine fetch work requests, for a client that
// keeps posting.
const maxDestroyAH = 256

func (c *conn) destroyAH(v *abi.HandleRequest, _ *control.Packet) (_ reply, err error) {
	for range maxDestroyAH {
		if _, err = destroy(c, v.Handle, func(a *nic.AH) error { return c.nic.DestroyAH(a) }); !errors.Is(err, syscall.EAGAIN) {
			break
		}
	}
	return reply{}, err
}
