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
func (c *conn) offer(page int) {
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
func (c *conn) unopened() error {
	switch {
	case c.nic != nil:
		return refuse(syscall.EBUSY, "%s is open already", c.device.Name())
	case c.host != nil:
		return refuse(syscall.EBUSY, "the connection has joined a context already")
	}
	return nil
}

// joinDevice makes the connection a guest. A host is never a guest, so locks are taken in one order.
func (c *conn) joinDevice(_ *empty, p *control.Packet) (answer, error) {
	if err := c.unopened(); err != nil {
		return answer{}, err
	}
	if len(p.FDs) != 1 {
		return answer{}, refuse(syscall.EINVAL, "a context is joined with the descriptor of its doorbell page")
	}
	id, err := pageOf(p.FDs[0])
	if err != nil {
		return answer{}, err
	}
	c.server.pagesMu.Lock()
	host := c.server.pages[id]
	c.server.pagesMu.Unlock()
	if host == nil {
		return answer{}, refuse(syscall.EINVAL, "the descriptor is not of a context's doorbell page")
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if host.nic == nil {
		return answer{}, refuse(syscall.ENODEV, "the context has ended")
	}
	return c.become(host, p)
}

// become gives the guest what it needs. Both locks are held.
func (c *conn) become(host *conn, p *control.Packet) (answer, error) {
	ring, fds, err := newEventRing(c)
	if err != nil {
		return answer{}, err
	}
	page, err := unix.FcntlInt(uintptr(p.FDs[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		ring.release()
		unix.Close(fds[0])
		unix.Close(fds[1])
		return answer{}, err
	}
	host.device.engine.Do(func() { host.sink.guests = append(host.sink.guests, ring) })
	if host.guests == nil {
		host.guests = map[*conn]struct{}{}
	}
	host.guests[c] = struct{}{}
	c.host, c.sink, c.device = host, ring, host.device
	r := abi.OpenDeviceReply{NodeGUID: c.guid(), DoorbellSize: abi.DoorbellSize, EventSlots: eventSlots}
	abi.PutText(r.Name[:], c.device.Name())
	return answer{
		body:  []any{r},
		fds:   []int{page, host.bellFD, fds[0], fds[1]},
		spent: []int{page, fds[0], fds[1]},
	}, nil
}

// shown refuses a guest's memory that would be looked for in its host's process.
func shown(p *control.Packet) error {
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
		return refuse(syscall.EPERM, "memory of a connection that has joined a context comes through /proc/self/mem")
	}
	return nil
}

// leaveHost ends a guest. It holds the guest's lock alone.
func (c *conn) leaveHost() {
	if c.host == nil {
		return
	}
	c.host.mu.Lock()
	delete(c.host.guests, c)
	c.host.mu.Unlock()
	c.device.engine.Do(func() {
		s := c.host.sink
		s.guests = slices.DeleteFunc(s.guests, func(r *eventRing) bool { return r == c.sink })
	})
	c.sink.release()
}

// dismissGuests ends those that have joined. The host's lock is held.
func (c *conn) dismissGuests() {
	c.server.pagesMu.Lock()
	delete(c.server.pages, c.page)
	c.server.pagesMu.Unlock()
	for g := range c.guests {
		c.server.running.Go(func() { g.end(refuse(syscall.ESHUTDOWN, "the connection that opened the device has ended")) })
	}
}
