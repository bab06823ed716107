package attach

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// A context may have several connections: the host, which opened the device, and guests, which joined it with a
// descriptor of its doorbell page. The objects are the host's; a guest's requests are carried out as if
// they were its host's, under the host's lock.

// A pageID says which doorbell page a descriptor is of.
type pageID struct{ device, inode uint64 }

func pageOf(fd int) (pageID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pageID{}, err
	}
	return pageID{st.Dev, st.Ino}, nil
}

// offer lets others join, who have a descriptor of the doorbell page.
func (c *conn) publish(page int) {
	id, err := pageOf(page)
	if err != nil {
		return // nobody will find it
	}
	c.page = id
	c.server.pagesMu.Lock()
	defer c.server.pagesMu.Unlock()
	c.server.pages[id] = c
}

// unopened refuses a connection that has a context.
func (c *conn) checkNotOpen() error {
	switch {
	case c.nic != nil:
		return errorf(syscall.EBUSY, "%s is open already", c.device.Name())
	case c.owner != nil:
		return errorf(syscall.EBUSY, "the connection has joined a context already")
	}
	return nil
}

// joinDevice makes the connection a guest. A host is never a guest, so locks are taken in one order.
func (c *conn) joinDevice(_ *empty, p *control.Packet) (reply, error) {
	if err := c.checkNotOpen(); err != nil {
		return reply{}, err
	}
	if len(p.FDs) != 1 {
		return reply{}, errorf(syscall.EINVAL, "a context is joined with the descriptor of its doorbell page")
	}
	id, err := pageOf(p.FDs[0])
	if err != nil {
		return reply{}, err
	}
	c.server.pagesMu.Lock()
	host := c.server.pages[id]
	c.server.pagesMu.Unlock()
	if host == nil {
		return reply{}, errorf(syscall.EINVAL, "the descriptor is not of a context's doorbell page")
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.nic == nil {
		return reply{}, errorf(syscall.ENODEV, "the context has ended")
	}
	return c.joinContext(host, p)
}

// become gives the guest what it needs. Both locks are held.
func (c *conn) joinContext(host *conn, p *control.Packet) (reply, error) {
	ring, fds, err := newEventRing(c)
	if err != nil {
		return reply{}, err
	}
	page, err := unix.FcntlInt(uintptr(p.FDs[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		ring.release()
		unix.Close(fds[0])
		unix.Close(fds[1])
		return reply{}, err
	}
	host.device.engine.Do(func() { host.events.joined = append(host.events.joined, ring) })
	if host.joined == nil {
		host.joined = map[*conn]struct{}{}
	}
	host.joined[c] = struct{}{}
	c.owner, c.events, c.device = host, ring, host.device
	r := abi.OpenDeviceReply{NodeGUID: c.guid(), DoorbellSize: abi.DoorbellSize, EventSlots: eventSlots}
	abi.PutText(r.Name[:], c.device.Name())
	return reply{
		body:       []any{r},
		fds:        []int{page, host.doorbellFD, fds[0], fds[1]},
		closeAfter: []int{page, fds[0], fds[1]},
	}, nil
}

// shown refuses a guest's memory that would be looked for in its host's process.
func checkJoinedMemory(p *control.Packet) error {
	var memory uint32
	switch p.Header.Op {
	case abi.OpRegMR:
		var v abi.RegMRRequest
		if _, err := abi.Decode(p.Body, &v); err != nil {
			return err
		}
		memory = v.Memory
	case abi.OpReregMR:
		var v abi.ReregMRRequest
		if _, err := abi.Decode(p.Body, &v); err != nil {
			return err
		}
		memory = v.MR.Memory
	default:
		return nil
	}
	switch memory {
	case abi.MemorySelf, abi.MemoryDMABuf, abi.MemoryDevice: // which no process is asked for
	default:
		return errorf(syscall.EPERM, "memory of a connection that has joined a context comes through /proc/self/mem")
	}
	return nil
}

// leaveHost ends a guest. It holds the guest's lock alone.
func (c *conn) leaveContext() {
	if c.owner == nil {
		return
	}
	c.owner.mu.Lock()
	delete(c.owner.joined, c)
	c.owner.mu.Unlock()
	c.device.engine.Do(func() {
		s := c.owner.events
		s.joined = slices.DeleteFunc(s.joined, func(r *eventRing) bool { return r == c.events })
	})
	c.events.release()
}

// dismissGuests ends those that have joined. The host's lock is held.
func (c *conn) endJoined() {
	c.server.pagesMu.Lock()
	delete(c.server.pages, c.page)
	c.server.pagesMu.Unlock()
	for g := range c.joined {
		c.server.running.Go(func() { g.end(errorf(syscall.ESHUTDOWN, "the connection that opened the device has ended")) })
	}
}
