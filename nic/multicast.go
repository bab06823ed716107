package nic

import (
	"errors"
	"slices"
	"syscall"

	"softroce/internal/ib"
	"softroce/transport"
	"softroce/wire"
)

// multicastQPN is the destination QP of every multicast packet (IBTA 9.6.1.3).
const multicastQPN = 0xffffff

// A group is a multicast group with attached queue pairs.
type group struct{ qps []*QP }

// of returns how many of the queue pairs are a user's.
func (g *group) of(u *user) (n int) {
	for _, q := range g.qps {
		if q.ctx.user == u {
			n++
		}
	}
	return n
}

// first returns the first of the queue pairs that a slice serves, or nil.
func (g *group) first(d *Device) *QP {
	for _, q := range g.qps {
		if q.device == d {
			return q
		}
	}
	return nil
}

// AttachMcast attaches q to a multicast GID: an IPv6 multicast address, or an IPv4-mapped one. The
// link joins the group when the first queue pair is attached. Attaching a queue pair again has no
// effect. Errors are EINVAL, ENOMEM, EOPNOTSUPP and those of the link.
func (c *Context) AttachMcast(q *QP, gid GID) error {
	if err := c.checkMcast(q, gid); err != nil {
		return err
	}
	d := c.device
	g := d.groups[gid]
	switch {
	case g != nil && slices.Contains(g.qps, q):
		return nil
	case g != nil && g.of(c.user) >= d.limits.MaxMcastQPs:
		return errorf(syscall.ENOMEM, "user %d has %d QPs in the multicast group, the limit", c.opt.UID, d.limits.MaxMcastQPs)
	}
	if err := c.checkLimit(kindAttached); err != nil {
		return err
	}
	if g == nil {
		// More attachments than groups of its own do not matter: there are far more groups.
		if err := c.checkShare("multicast group", c.user.count[kindAttached], len(d.groups), d.limits.MaxMcastGroups, c.limits.Groups); err != nil {
			return err
		}
		g = &group{}
	}
	if s := q.device; g.first(s) == nil {
		if err := wire.Join(s.link, gid.Addr()); err != nil {
			return joinError(gid, err)
		}
	}
	d.groups[gid] = g
	g.qps = append(g.qps, q)
	q.groups = append(q.groups, gid)
	c.add(kindAttached, 1)
	return nil
}

// DetachMcast detaches q from a multicast GID; EINVAL if it is not attached.
func (c *Context) DetachMcast(q *QP, gid GID) error {
	if err := c.checkMcast(q, gid); err != nil {
		return err
	}
	if !slices.Contains(q.groups, gid) {
		return errorf(syscall.EINVAL, "QP %#x is not attached to %v", q.qpn, gid.Addr())
	}
	q.detach(gid)
	return nil
}

func joinError(gid GID, err error) error {
	no := syscall.EIO
	errors.As(err, &no)
	return errorf(no, "link cannot join multicast group %v", gid.Addr())
}

func (c *Context) checkMcast(q *QP, gid GID) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := c.device.require(CapMulticast, "multicast"); err != nil {
		return err
	}
	switch {
	case q == nil || q.ctx != c:
		return errorf(syscall.ENOENT, "the QP is not of this context")
	case q.init.Type != ib.QPTypeUD:
		return errorf(syscall.EINVAL, "QP of type %v: multicast needs UD", q.init.Type)
	case !gid.Addr().IsMulticast():
		return errorf(syscall.EINVAL, "%v is not a multicast GID", gid.Addr())
	}
	return nil
}

// detach removes q from a group. The link leaves the group with the last queue pair.
func (q *QP) detach(gid GID) {
	d := q.device
	q.groups = remove(q.groups, gid)
	q.ctx.add(kindAttached, -1)
	g := d.groups[gid]
	g.qps = slices.DeleteFunc(g.qps, func(o *QP) bool { return o == q }) // keeps the order, which is that of delivery
	if len(g.qps) == 0 {
		delete(d.groups, gid)
	}
	if g.first(d) == nil {
		wire.Leave(d.link, gid.Addr())
	}
}

// multicast delivers d.buffers.pkt to each queue pair of the frame's group except the sender.
func (d *Device) multicast(f *wire.RxFrame) {
	p := &d.buffers.pkt
	g := d.groups[GIDOf(f.Dst)]
	switch {
	case !f.Dst.IsMulticast() || p.DestQP != multicastQPN:
		d.counters.Drop(transport.DropQPN)
		return
	case g == nil:
		if !d.isPart() { // a link may give each slice a copy
			d.counters.Drop(transport.DropGroup)
		}
		return
	case f.BadICRC:
		d.counters.Drop(transport.DropICRC)
		return
	}
	own := d.gids.has(f.Src, f.VLAN(), f.Network)
	for _, q := range g.qps {
		if q.device != d || own && q.qpn == p.DETH.SrcQP {
			continue
		}
		if reason, ok := q.accepts(f, p); !ok {
			d.counters.Drop(reason)
			continue
		}
		if q.held() { // kept would be a copy for each member
			d.counters.Drop(transport.DropMemoryWait)
			continue
		}
		d.counters.RxMulticast++
		d.deliver(q)
	}
}
