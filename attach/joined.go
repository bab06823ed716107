package attach

import (
	"math"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// A context can have several connections: its owner, which opened the device, and those that joined
// it with a descriptor of its doorbell page. The owner's connection holds the objects. Requests of
// a joined connection run on the owner's connection, under the owner's lock. A prepared request may
// outlive the owner's connection, and is then not committed.

// A pageID identifies a doorbell page by the file behind its descriptor.
type pageID struct{ device, inode uint64 }

func pageOf(fd int) (pageID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pageID{}, err
	}
	return pageID{st.Dev, st.Ino}, nil
}

// publish lets connections that have a descriptor of the context's doorbell page join it.
func (c *conn) publish(page int) {
	id, err := pageOf(page)
	if err != nil {
		return // the context cannot be joined
	}
	c.page = id
	c.server.pagesMu.Lock()
	defer c.server.pagesMu.Unlock()
	c.server.pages[id] = c
}

// checkNotOpen returns an error if the connection has a context.
func (c *conn) checkNotOpen() error {
	switch {
	case c.nic != nil:
		return errorf(syscall.EBUSY, "%s is already open", c.device.Name())
	case c.owner != nil:
		return errorf(syscall.EBUSY, "the connection has already joined a context")
	}
	return nil
}

// joinDevice joins the context of another connection. An owner never joins a context itself, so
// locks are taken in one order.
func (c *conn) joinDevice(_ *empty, p *control.Packet) (prepared, error) {
	if len(p.FDs) != 1 {
		return prepared{}, errorf(syscall.EINVAL, "joining a context requires the descriptor of its doorbell page")
	}
	id, err := pageOf(p.FDs[0])
	if err != nil {
		return prepared{}, err
	}
	c.server.pagesMu.Lock()
	owner := c.server.pages[id]
	c.server.pagesMu.Unlock()
	if owner == nil {
		return prepared{}, errorf(syscall.EINVAL, "the descriptor does not refer to a context's doorbell page")
	}
	if err := checkAccess(p.FDs[0], unix.O_RDWR); err != nil {
		return prepared{}, err
	}
	page, err := unix.FcntlInt(uintptr(p.FDs[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return prepared{}, err
	}
	return prepared{
		commit: func() (reply, error) {
			if err := c.checkNotOpen(); err != nil {
				return reply{}, err
			}
			owner.mu.Lock()
			defer owner.mu.Unlock()
			if owner.ended {
				return reply{}, errorf(syscall.ENODEV, "the context has ended")
			}
			return c.joinContext(owner, page)
		},
		abandon: func() { unix.Close(page) },
	}, nil
}

// joinContext makes c a joined connection of owner's context, to whose doorbell page the descriptor
// page refers. The caller holds both locks.
func (c *conn) joinContext(owner *conn, page int) (reply, error) {
	bell, err := unix.FcntlInt(uintptr(owner.doorbellFD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return reply{}, err
	}
	// The chunk of the event ring, the only one of this connection, gets number 0. The client also
	// has chunks of the owner's, whose numbers begin with 1.
	c.rings.last = math.MaxUint32
	ring, fds, err := newEventRing(c, owner.device.engine)
	if err != nil {
		c.rings.last = 0
		unix.Close(bell)
		return reply{}, err
	}
	owner.device.engine.Do(func() { owner.events.joined = append(owner.events.joined, ring) })
	if owner.joined == nil {
		owner.joined = map[*conn]struct{}{}
	}
	owner.joined[c] = struct{}{}
	c.owner, c.events, c.device = owner, ring, owner.device
	c.show()
	fds = []int{page, bell, fds[0], fds[1]}
	return reply{body: []any{c.openReply()}, fds: fds, closeAfter: fds}, nil
}

// checkJoinedMemory rejects a memory registration of a joined connection that names an address in
// the owner's process.
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
	case abi.MemorySelf, abi.MemoryDMABuf, abi.MemoryDevice: // these name no process
	default:
		return errorf(syscall.EPERM, "a connection that joined a context must register memory through /proc/self/mem")
	}
	return nil
}

// leaveContext ends the membership of a joined connection. The caller holds c's lock alone.
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
		c.events.closed = true
	})
	c.events.release()
}

// endJoined closes the connections that joined the context. The caller holds the owner's lock.
func (c *conn) endJoined() {
	c.server.pagesMu.Lock()
	delete(c.server.pages, c.page)
	c.server.pagesMu.Unlock()
	for g := range c.joined {
		c.server.running.Go(func() { g.end(errorf(syscall.ESHUTDOWN, "the connection that opened the device has closed")) })
	}
}
