package attach

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/wire/fault"
)

// A conn is a client's connection.
type conn struct {
	server *Server
	sock   *net.UnixConn
	peer   peer
	number uint32 // by which snapshots name the client

	ctx          context.Context // ends with the connection
	cancel       context.CancelFunc
	slowRequests sync.WaitGroup // that are running beside the others
	slowSlots    chan struct{}  // one token per running slow request
	shown        atomic.Pointer[ClientInfo]
	capturing    atomic.Bool // a capture was requested and not stopped

	endOnce sync.Once

	files *mrtable.Files // mappings of what the client registers

	processMu sync.Mutex
	process   *mrtable.Process // the client's; nil until needed

	// Held during a request that does not wait, and while a prepared one is committed. Connections
	// that joined the context wait for it, so no call on the client's memory or descriptors may be
	// made with it.
	mu         sync.Mutex
	ended      bool // the objects are destroyed
	helloDone  bool
	comm       string
	device     device
	nic        *nic.Context // nil until a device is opened
	objects    handles
	account    account
	rings      arena
	events     *eventRing
	doorbells  []byte // the doorbell page
	doorbellFD int
	capture    Capture // nil while it starts or stops
	owner      *conn   // the connection whose context this one joined, or nil; set once, by joinDevice
	joined     map[*conn]struct{}
	page       pageID      // of the doorbell page
	session    *cm.Session // nil before the connection manager is opened
}

// maxSlowRequests is the number of a client's requests that may be prepared at a time. While there
// are as many, no further request is read.
const maxSlowRequests = 64

func newConn(s *Server, sock *net.UnixConn, p peer) *conn {
	c := &conn{server: s, number: s.lastClient.Add(1), sock: sock, peer: p, doorbellFD: -1, slowSlots: make(chan struct{}, maxSlowRequests)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.files, c.account = s.budget.registered(p.UID), account{budget: s.budget, uid: p.UID}
	c.objects.account, c.rings.account = &c.account, &c.account
	c.objects.init()
	c.show()
	return c
}

// show updates what snapshots show of the connection. The caller holds the lock.
func (c *conn) show() {
	i := ClientInfo{Client: c.number, PID: c.peer.PID, UID: c.peer.UID, Comm: c.comm}
	if c.nic != nil {
		i.Device = c.device.Name()
	}
	c.shown.Store(&i)
}

// requestsAtATime is how many requests of a client are handled before other goroutines run. To
// yield after each would wake a thread each time.
const requestsAtATime = 16

// serve handles requests until the connection ends, and then cleans up.
func (c *conn) serve() {
	defer c.cleanup()
	buf := make([]byte, abi.MaxMessage)
	for n := 1; ; n++ {
		p, err := control.Read(c.sock, buf)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET):
			return
		case err != nil:
			// After an invalid message, the rest of the stream cannot be trusted.
			c.slowRequests.Go(p.CloseFDs)
			c.end(errorf(syscall.EPROTO, "%v", err))
			return
		}
		c.handle(&p)
		if n%requestsAtATime == 0 {
			runtime.Gosched() // many requests of one client are not one time slice
		}
	}
}

// handle carries out a request and replies.
func (c *conn) handle(p *control.Packet) {
	op, owner, err := c.lookUp(p)
	var faults fault.VerbVerdict
	if err == nil {
		faults, err = c.fault(op, p, owner)
	}
	late := faults.Delay > 0 || faults.Held != nil
	if err == nil && op.run != nil && !late {
		a, err := owner.locked(op, func() (reply, error) { return op.run(owner, p) })
		c.sendReply(p, a, err)
		return
	}
	var cost amounts
	if op == nil || op.client || late {
		cost = amounts{waiting: 1, descriptors: uint64(len(p.FDs))}
	}
	if failed := c.server.budget.take(c.peer.UID, cost); failed != nil {
		err, cost = failed, amounts{}
	}
	// Closing a descriptor can also take any time: a socket may linger, a file system wait.
	slow := *p
	slow.Body = append([]byte(nil), p.Body...)
	c.beside(func() {
		var a reply
		c.wait(faults, err)
		switch {
		case err != nil:
		case op.run != nil:
			a, err = owner.locked(op, func() (reply, error) { return op.run(owner, &slow) })
		default:
			a, err = c.prepare(op, owner, &slow)
		}
		slow.CloseFDs()
		c.server.budget.release(c.peer.UID, cost)
		c.sendReply(&slow, a, err)
	})
}

// prepare carries out a request that may wait.
func (c *conn) prepare(op *operation, owner *conn, p *control.Packet) (reply, error) {
	if owner != c {
		if err := checkJoinedMemory(p); err != nil {
			return reply{}, err
		}
	}
	if c.ctx.Err() != nil {
		return reply{}, errorf(syscall.ESHUTDOWN, "the connection has ended")
	}
	ready, err := op.prepare(owner, p)
	if err != nil {
		return reply{}, err
	}
	a, err := owner.locked(op, ready.commit)
	if err != nil && ready.abandon != nil {
		ready.abandon()
	}
	return a, err
}

// locked calls f, which carries out an operation, with the connection's lock, unless the connection
// has ended.
func (c *conn) locked(op *operation, f func() (reply, error)) (reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return reply{}, errorf(syscall.ENODEV, "the connection that opened the device has ended")
	}
	cost := amounts{memory: op.memory}
	if err := c.account.take(cost); err != nil {
		return reply{}, err
	}
	a, err := f()
	if err != nil {
		c.account.release(cost)
	}
	return a, err
}

// beside runs f beside other requests. It waits while maxSlowRequests run, and runs f in any case:
// f closes the descriptors of a request.
func (c *conn) beside(f func()) {
	for c.ctx.Err() == nil {
		select {
		case c.slowSlots <- struct{}{}:
			c.slowRequests.Go(func() {
				defer func() { <-c.slowSlots }()
				f()
			})
			return
		case <-c.ctx.Done():
		case <-time.After(hangupInterval):
			if c.hungUp() {
				c.cancel()
			}
		}
	}
	c.slowRequests.Go(f)
}

// hungUp reports whether the client has closed its side.
func (c *conn) hungUp() (is bool) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return true
	}
	raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, _ := unix.Poll(p, 0)
		is = n > 0
	})
	return is
}

// A reply is the content of a successful reply.
type reply struct {
	body       []any // message structs
	fds        []int
	closeAfter []int // those of fds that the daemon does not keep
}

func (c *conn) sendReply(p *control.Packet, a reply, err error) {
	h := abi.Header{Version: abi.Version, Op: p.Header.Op, Tag: p.Header.Tag, FDs: uint32(len(a.fds))}
	var msg []byte
	if err != nil {
		no, text := explain(err)
		h.Errno = uint32(no)
		msg = abi.Message(nil, h, []byte(text))
	} else {
		msg = abi.Message(nil, h, a.body...)
	}
	err = control.Write(c.sock, msg, a.fds...)
	for _, fd := range a.closeAfter {
		unix.Close(fd)
	}
	if err != nil {
		c.end(errorf(syscall.EPIPE, "cannot send a reply: %v", err))
	}
}

// end closes the connection for a reason, which it sends to the client. It may be called from any
// goroutine. serve then returns.
func (c *conn) end(reason error) {
	c.endOnce.Do(func() {
		c.server.log.Info("client disconnected", "pid", c.peer.PID, "uid", c.peer.UID, "reason", reason)
		c.sendGoodbye(reason)
		c.shutdown()
		c.cancel()
	})
}

// sendGoodbye sends the client the reason why the connection will be closed. It never waits: a
// client whose socket is full only sees the connection end.
func (c *conn) sendGoodbye(reason error) {
	no, text := explain(reason)
	h := abi.Header{Version: abi.Version, Op: abi.OpGoodbye, Errno: uint32(no)}
	msg := abi.Message(nil, h, []byte(text))
	c.control(func(fd int) { unix.SendmsgN(fd, msg, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
}

func (c *conn) shutdown() { c.control(func(fd int) { unix.Shutdown(fd, unix.SHUT_RDWR) }) }

// control calls f with the socket, also while a reply waits for room in it.
func (c *conn) control(f func(fd int)) {
	if raw, err := c.sock.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// cleanup destroys the client's objects. The engine closes the context first: after that it does
// not access the rings. A request that still waits for the client's memory or descriptors is
// abandoned after lingerTimeout; it holds nothing but what it was given.
func (c *conn) cleanup() {
	c.cancel()
	c.destroyObjects()
	released := make(chan struct{})
	go func() {
		defer close(released)
		c.slowRequests.Wait()
		if c.process != nil {
			c.process.Close()
		}
		c.peer.close()
		c.closeSocket()
		c.server.budget.release(c.peer.UID, connectionCost)
	}()
	select {
	case <-released:
	case <-time.After(lingerTimeout):
		c.shutdown()
	}
}

// closeSocket closes the socket, and with it the descriptors in messages that were not read, which
// may take any time.
func (c *conn) closeSocket() {
	thread := amounts{waiting: 1}
	c.server.budget.await(c.peer.UID, thread)
	c.sock.Close()
	c.server.budget.release(c.peer.UID, thread)
}

func (c *conn) destroyObjects() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if capture := c.capture; capture != nil {
		c.capture = nil
		c.slowRequests.Go(func() { capture.Stop() })
	}
	defer c.account.close() // objects that need no other release
	c.cmClose()
	c.leaveContext()
	if c.nic != nil {
		c.endJoined()
		for closed := false; !closed; {
			c.device.engine.Do(func() {
				closed = c.nic.CloseSome(nic.CloseObjects)
				c.events.closed = closed
			})
		}
		c.objects.release()
		c.events.release()
		c.account.unmap(c.doorbells)
		unix.Close(c.doorbellFD)
		c.nic = nil
		c.server.log.Info("client detached", "nic", c.device.Name(), "pid", c.peer.PID, "uid", c.peer.UID, "comm", c.comm)
	}
}

// explain returns the errno and the text of a reply for an error. The text does not repeat the
// errno.
func explain(err error) (syscall.Errno, string) {
	var own *Error
	if errors.As(err, &own) {
		return own.Errno, own.Text
	}
	var cmErr *cm.Error
	if errors.As(err, &cmErr) {
		return cmErr.Errno, cmErr.Text
	}
	var nicErr *nic.Error
	if errors.As(err, &nicErr) {
		return nicErr.Errno, nicErr.Text
	}
	no := errno(err)
	return no, strings.TrimSuffix(err.Error(), ": "+no.Error())
}

// errno returns the errno that libibverbs uses for an error.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		return no
	case errors.Is(err, mrtable.ErrPermission):
		return syscall.EPERM
	case errors.Is(err, mrtable.ErrAccess):
		return syscall.EACCES
	case errors.Is(err, mrtable.ErrFault):
		return syscall.EFAULT
	case errors.Is(err, mrtable.ErrGone):
		return syscall.ESRCH
	case errors.Is(err, mrtable.ErrFull):
		return syscall.ENOMEM
	case errors.Is(err, mrtable.ErrBusy):
		return syscall.EBUSY
	}
	return syscall.EINVAL
}
