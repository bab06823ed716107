package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/wire"
)

// An AH is an address handle: the destination of datagrams.
type AH struct {
	ctx    *Context
	id     uint32
	pd     *PD
	number uint32
	av     AddressVector
	path   *wire.Path // without a source port, which depends on the sending queue pair

	paths []ahPaths  // by slice
	first [1]ahPaths // storage of paths, if there is one slice
}

// ahPaths are the paths of an address handle by source port. Frames in flight refer to them, so
// each is created once and stays.
type ahPaths struct {
	byPort  map[uint16]*wire.Path
	last    *wire.Path // path of lastQPN
	lastQPN uint32     // 0 if last is nil
}

// CreateAH creates an address handle, which send work requests of the context name by number.
// av.Path is the result of ResolvePath. Errors are EINVAL, EEXIST (the number is in use) and
// ENOMEM.
func (c *Context) CreateAH(p *PD, number uint32, av AddressVector) (*AH, error) {
	if err := c.own(p); err != nil {
		return nil, err
	}
	d := c.device
	if err := c.checkLimit(kindAH); err != nil {
		return nil, err
	}
	if c.ahs[number] != nil {
		return nil, errorf(syscall.EEXIST, "AH %d exists", number)
	}
	path, err := d.resolved(&av)
	if err != nil {
		return nil, err
	}
	a := &AH{ctx: c, id: d.newID(), pd: p, number: number, av: av, path: path}
	a.paths = a.first[:]
	if n := len(d.slices); n > 1 {
		a.paths = make([]ahPaths, n)
	}
	p.users++
	c.ahs[number] = a
	c.add(kindAH, 1)
	return a, nil
}

// DestroyAH destroys an address handle. Work requests that were posted before keep using it: they
// are fetched first. EAGAIN if there are more than one call fetches.
func (c *Context) DestroyAH(a *AH) error {
	if a == nil || a.ctx != c {
		return errorf(syscall.ENOENT, "the AH is not of this context")
	}
	if !c.fetchDatagrams() {
		return errorf(syscall.EAGAIN, "the engine has not fetched all work requests")
	}
	a.remove()
	return nil
}

// maxFetch bounds how many work requests fetchDatagrams fetches, and so how long it takes: about
// 100 µs.
const maxFetch = 2048

// fetchDatagrams fetches what is posted to the UD queue pairs, and reports whether that is all.
func (c *Context) fetchDatagrams() (all bool) {
	left := maxFetch
	for _, q := range c.qps {
		if q.init.Type != ib.QPTypeUD {
			continue
		}
		for end := q.sq.loadProducer(); int32(end-q.sqFetched) > 0; {
			if left <= 0 {
				return false
			}
			before := q.sqFetched
			q.fetchSends()
			if q.sqFetched == before {
				break
			}
			left -= int(q.sqFetched - before)
			q.device.tx.activate(q)
		}
	}
	return true
}

func (a *AH) remove() {
	c := a.ctx
	a.ctx = nil
	a.pd.users--
	delete(c.ahs, a.number)
	c.add(kindAH, -1)
}

// handle returns the address handle that a work request names, or nil if it is not of the queue
// pair's context, PD and port.
func (q *QP) handle(number uint32) any {
	if a := q.ctx.ahs[number]; a != nil && a.pd == q.pd && a.av.Port == q.port {
		return a
	}
	return nil
}

// route returns the path of the next frame of q.
func (q *QP) route() *wire.Path {
	if q.init.Type != ib.QPTypeUD {
		return q.path
	}
	if a, ok := q.t.Destination().(*AH); ok {
		return a.pathFor(q)
	}
	return nil
}

// pathFor returns the path of datagrams that q sends.
func (a *AH) pathFor(q *QP) *wire.Path {
	s := &a.paths[q.device.number]
	if s.lastQPN == q.qpn {
		return s.last
	}
	port := q.device.link.Capabilities().SrcPort
	switch {
	case port != 0:
	case a.av.FlowLabel != 0:
		port = sourcePort(a.av.FlowLabel, 0, 0)
	default:
		port = datagramPort(q.qpn)
	}
	p := s.byPort[port]
	if p == nil {
		p = new(wire.Path)
		*p = *a.path
		p.SrcPort = port
		if s.byPort == nil {
			s.byPort = map[uint16]*wire.Path{}
		}
		s.byPort[port] = p
	}
	s.last, s.lastQPN = p, q.qpn
	return p
}

// moved sets the new MAC of the next hop.
func (a *AH) moved(dst wire.Station, mac [6]byte) {
	if a.path.Dst != dst.Addr || a.path.VLAN != dst.VLAN || a.path.DstMAC == mac {
		return
	}
	p := *a.path
	p.DstMAC = mac
	a.path = &p
	clear(a.paths)
}

// datagramPort returns the UDP source port of a UD queue pair whose address handle has no flow
// label: a multiplicative hash of the QPN, as in the Linux driver.
func datagramPort(qpn uint32) uint16 {
	const goldenRatio = 0x61c88647
	return uint16(0xc000 | qpn*goldenRatio>>18)
}
