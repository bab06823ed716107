package attach

import (
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
)

func (c *conn) createSRQ(v *abi.CreateSRQRequest, _ *control.Packet) (reply, error) {
	pd, err := lookUp[*nic.PD](&c.objects, v.PD)
	if err != nil {
		return reply{}, err
	}
	init := nic.SRQInit{PD: pd, MaxWR: count(v.Attr.MaxWR), MaxSGE: count(v.Attr.MaxSGE), Limit: count(v.Attr.SRQLimit)}
	if err := c.xrcSRQInit(v, &init); err != nil {
		return reply{}, err
	}
	if err := c.device.RoundSRQ(&init.MaxWR, &init.MaxSGE); err != nil {
		return reply{}, err
	}
	rings, mem, fd, err := c.rings.newRing(abi.RingSize(init.MaxWR, abi.RecvSlotSize(init.MaxSGE)))
	if err != nil {
		return reply{}, err
	}
	init.Ring = c.rings.begin(mem)
	s := &srq{rings: rings}
	var r abi.SRQReply
	c.device.engine.Do(func() {
		if s.nic, err = c.nic.CreateSRQ(init); err == nil {
			handle := c.objects.add(s)
			c.events.handles[s.nic] = handle
			r = srqReply(handle, s.nic)
		}
	})
	if err != nil {
		rings.release()
		unix.Close(fd)
		return reply{}, err
	}
	r.Chunk, r.Ring = rings.number(), rings.offset()
	return reply{body: []any{r}, fds: []int{fd}, closeAfter: []int{fd}}, nil
}

// srqReply describes a queue. It runs on the engine.
func srqReply(handle uint32, s *nic.SRQ) abi.SRQReply {
	a := s.Query()
	return abi.SRQReply{
		Handle: handle, Slots: uint32(a.MaxWR), SlotSize: uint32(abi.RecvSlotSize(a.MaxSGE)), Number: s.Number(),
		Attr: abi.SRQAttr{MaxWR: uint32(a.MaxWR), MaxSGE: uint32(a.MaxSGE), SRQLimit: uint32(a.Limit)},
	}
}

// modifySRQ sets the limit, replaces the ring, or does both. If one fails, neither is done.
func (c *conn) modifySRQ(v *abi.ModifySRQRequest, _ *control.Packet) (reply, error) {
	s, err := lookUp[*srq](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	if v.Mask&^(abi.SRQMaxWR|abi.SRQLimit) != 0 {
		return reply{}, errorf(syscall.EINVAL, "unknown attributes in mask %#x", v.Mask)
	}
	change := nic.SRQChange{Limit: -1}
	if v.Mask&abi.SRQLimit != 0 {
		change.Limit = count(v.Attr.SRQLimit)
	}
	var a reply
	var rings *ringMemory
	if v.Mask&abi.SRQMaxWR != 0 {
		var maxSGE, fd int
		change.MaxWR = count(v.Attr.MaxWR)
		c.device.engine.Do(func() { maxSGE = s.nic.Query().MaxSGE })
		if err := c.device.RoundSRQ(&change.MaxWR, &maxSGE); err != nil {
			return reply{}, err
		}
		rings, change.Ring, fd, err = c.rings.newRing(abi.RingSize(change.MaxWR, abi.RecvSlotSize(maxSGE)))
		if err != nil {
			return reply{}, err
		}
		a.fds, a.closeAfter = []int{fd}, []int{fd}
	}
	var r abi.SRQReply
	c.device.engine.Do(func() {
		if err = c.nic.ModifySRQ(s.nic, change); err == nil {
			r = srqReply(v.Handle, s.nic)
		}
	})
	if err != nil {
		if rings != nil {
			rings.release()
			unix.Close(a.fds[0])
		}
		return reply{}, err
	}
	if rings != nil {
		s.rings.release()
		s.rings = rings
		r.Chunk, r.Ring = rings.number(), rings.offset()
	}
	a.body = []any{r}
	return a, nil
}

func (c *conn) querySRQ(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	s, err := lookUp[*srq](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	var r abi.SRQReply
	c.device.engine.Do(func() { r = srqReply(v.Handle, s.nic) })
	return reply{body: []any{r.Attr}}, nil
}

func (c *conn) destroySRQ(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	s, err := destroy(c, v.Handle, func(s *srq) error {
		err := c.nic.DestroySRQ(s.nic)
		if err == nil {
			c.events.forget(s.nic)
		}
		return err
	})
	if err == nil {
		s.rings.release()
	}
	return reply{}, err
}
