package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/wire"
)

// An AH is an address handle: where datagrams go.
type AH struct {
	ctx    *Context
	pd     *PD
	number uint32
	av     AddressVector
	path   *wire.Path // without a source port, which is the sending queue pair's

	// Paths by source port: frames under way refer to them, so each is made once.
	paths   map[uint16]*wire.Path
	last    *wire.Path // of lastQPN
	lastQPN uint32     // 0: none
}

// CreateAH creates an address handle, which send work requests of the context call number;
// av.Path is set by ResolvePath. Errors are EINVAL, EEXIST (the number is taken) and ENOMEM.
func (c *Context) CreateAH(p *PD, number uint32, av AddressVector) (*AH, error) {
	if err := c.own(p); err != nil {
		return nil, err
	}
	d := c.device
	if err := checkLimit("AH", d.count.ahs, d.limits.MaxAH, c.count.ahs, c.limits.AHs); err != nil {
		return nil, err
	}
	if c.ahs[number] != nil {
		return nil, errorf(syscall.EEXIST, "there is an AH %d already", number)
	}
	path, err := d.resolved(&av)
	if err != nil {
		return nil, err
	}
	a := &AH{ctx: c, pd: p, number: number, av: av, path: path, paths: map[uint16]*wire.Path{}}
	p.users++
	c.ahs[number] = a
	c.count.ahs++
	d.count.ahs++
	return a, nil
}

// DestroyAH destroys an address handle. Work requests that the engine has taken keep it.
func (c *Context) DestroyAH(a *AH) error {
	if a == nil || a.ctx != c {
		return errorf(syscall.EINVAL, "no AH of this context")
	}
	a.remove()
	return nil
}

func (a *AH) remove() {
	c := a.ctx
	a.ctx = nil
	a.pd.users--
	delete(c.ahs, a.number)
	c.count.ahs--
	c.device.count.ahs--
}

// handle finds the address handle that a work request names: one of the queue pair's own
// context and PD, or nil.
func (q *QP) handle(number uint32) any {
	if a := q.ctx.ahs[number]; a != nil && a.pd == q.pd {
		return a
	}
	return nil
}

// route is the path of the frame that q is about to fill.
func (q *QP) route() *wire.Path {
	if q.init.Type != ib.QPTypeUD {
		return q.path
	}
	if a, ok := q.t.Destination().(*AH); ok {
		return a.pathFor(q)
	}
	return nil
}

// pathFor returns the path of datagrams of q.
func (a *AH) pathFor(q *QP) *wire.Path {
	if a.lastQPN == q.qpn {
		return a.last
	}
	port := q.device.link.Capabilities().SrcPort
	switch {
	case port != 0:
	case a.av.FlowLabel != 0:
		port = sourcePort(a.av.FlowLabel, 0, 0)
	default:
		port = datagramPort(q.qpn)
	}
	p := a.paths[port]
	if p == nil {
		p = new(wire.Path)
		*p = *a.path
		p.SrcPort = port
		a.paths[port] = p
	}
	a.last, a.lastQPN = p, q.qpn
	return p
}

// moved gives a the new MAC of its next hop.
func (a *AH) moved(dst wire.Station, mac [6]byte) {
	if a.path.Dst != dst.Addr || a.path.VLAN != dst.VLAN || a.path.DstMAC == mac {
		return
	}
	p := *a.path
	p.DstMAC = mac
	a.path, a.lastQPN = &p, 0
	clear(a.paths)
}

// datagramPort returns the UDP source port of a UD queue pair without a flow label: the QPN, spread by the golden
// ratio's 32-bit fraction, as the Linux driver does it.
func datagramPort(qpn uint32) uint16 {
	const goldenRatio = 0x61c88647
	return uint16(0xc000 | qpn*goldenRatio>>18)
}
