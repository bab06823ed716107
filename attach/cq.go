package attach

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
)

func (c *conn) createChannel(*empty, *control.Packet) (reply, error) {
	n := 0
	for _, o := range c.objects.m {
		if _, ok := o.(*channel); ok {
			n++
		}
	}
	if max := c.server.config.Limits.CQs; n >= max {
		return reply{}, errorf(syscall.ENOMEM, "the context has %d completion channels, the limit", max)
	}
	events, fd, err := c.account.newEventSocket()
	if err != nil {
		return reply{}, err
	}
	a := handleReply(c.objects.add(&channel{events: events}))
	a.fds, a.closeAfter = []int{fd}, []int{fd}
	return a, nil
}

func (c *conn) destroyChannel(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	ch, err := lookUp[*channel](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	if ch.users > 0 {
		return reply{}, errorf(syscall.EBUSY, "the completion channel is in use by %d CQs", ch.users)
	}
	c.account.closeEventSocket(ch.events)
	c.objects.remove(v.Handle)
	return reply{}, nil
}

func (c *conn) createCQ(v *abi.CreateCQRequest, _ *control.Packet) (reply, error) {
	q := &cq{ownsChannel: v.Flags&abi.CQOwnChannel != 0}
	switch {
	case v.Flags&^(abi.CQOwnChannel|abi.CQTimestamps) != 0:
		return reply{}, errorf(syscall.EINVAL, "unknown flags %#x", v.Flags)
	case q.ownsChannel && v.Channel != 0:
		return reply{}, errorf(syscall.EINVAL, "a CQ with its own completion channel cannot use another")
	case v.Channel != 0:
		var err error
		if q.channel, err = lookUp[*channel](&c.objects, v.Channel); err != nil {
			return reply{}, err
		}
	}
	slots, err := c.device.CQSlots(count(v.Entries))
	if err != nil {
		return reply{}, err
	}
	var a reply
	if q.ownsChannel {
		events, fd, err := c.account.newEventSocket()
		if err != nil {
			return reply{}, err
		}
		q.channel = &channel{events: events}
		a.fds = []int{fd}
	}
	fail := func(err error) (reply, error) {
		if q.ownsChannel {
			c.account.closeEventSocket(q.channel.events)
			unix.Close(a.fds[0])
		}
		return reply{}, err
	}
	rings, mem, fd, err := c.rings.newRing(abi.RingSize(slots, abi.CQESize))
	if err != nil {
		return fail(err)
	}
	q.rings = rings
	config := nic.CQConfig{Entries: slots, Ring: c.rings.begin(mem), Timestamps: v.Flags&abi.CQTimestamps != 0}
	if q.channel != nil {
		config.Notify = q.channel.events.signal
	}
	var handle uint32
	c.device.engine.Do(func() {
		if q.nic, err = c.nic.CreateCQ(config); err == nil {
			handle = c.objects.add(q)
			c.events.handles[q.nic] = handle
		}
	})
	if err != nil {
		rings.release()
		unix.Close(fd)
		return fail(err)
	}
	if !q.ownsChannel && q.channel != nil {
		q.channel.users++
	}
	a.body = []any{cqReply(handle, slots, rings)}
	a.fds = append([]int{fd}, a.fds...)
	a.closeAfter = a.fds
	return a, nil
}

// resizeCQ replaces the ring of a queue. The client does not poll the queue during the request.
func (c *conn) resizeCQ(v *abi.ResizeCQRequest, _ *control.Packet) (reply, error) {
	q, err := lookUp[*cq](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	slots, err := c.device.CQSlots(count(v.Entries))
	if err != nil {
		return reply{}, err
	}
	rings, mem, fd, err := c.rings.newRing(abi.RingSize(slots, abi.CQESize))
	if err != nil {
		return reply{}, err
	}
	c.device.engine.Do(func() { err = c.nic.ResizeCQ(q.nic, slots, mem) })
	if err != nil {
		rings.release()
		unix.Close(fd)
		return reply{}, err
	}
	q.rings.release()
	q.rings = rings
	return reply{body: []any{cqReply(v.Handle, slots, rings)}, fds: []int{fd}, closeAfter: []int{fd}}, nil
}

func cqReply(handle uint32, slots int, rings *ringMemory) abi.CreateCQReply {
	return abi.CreateCQReply{Handle: handle, Entries: uint32(slots), Chunk: rings.number(), Ring: rings.offset()}
}

func (c *conn) destroyCQ(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	q, err := destroy(c, v.Handle, func(q *cq) error {
		err := c.nic.DestroyCQ(q.nic)
		if err == nil {
			c.events.forget(q.nic)
		}
		return err
	})
	if err != nil {
		return reply{}, err
	}
	q.release(&c.account)
	return reply{body: []any{abi.DestroyCQReply{Events: q.nic.Events()}}}, nil
}

// count converts a number of elements. One that does not fit an int becomes the largest, which is
// above every limit.
func count(v uint32) int { return int(min(v, math.MaxInt32)) }
