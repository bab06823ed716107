package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"softroce/verbs"
	"softroce/verbs/rdmacm"
)

// The service of the connection manager: the server returns each message. A client says goodbye
// with an empty one before it disconnects, so that the end of a connection without it shows. Both
// send their process ID with the request and its acceptance.
var service = netip.MustParseAddrPort(addrB + ":7000")

const (
	echoSize   = 16 << 10
	echoes     = 8 // receives of each side
	echoMemory = 2 * echoes * echoSize
)

// staleConnection is the reason of such a rejection (IBTA 12.6.7.2).
const staleConnection = 10

var echoCapacity = verbs.QPCap{MaxSendWR: 2 * echoes, MaxRecvWR: 2 * echoes, MaxSendSGE: 1, MaxRecvSGE: 1}

// A link is a connection on one side.
type link struct {
	*endpoint
	id    *rdmacm.ID
	qp    *verbs.QP
	peer  int                // process ID, once it is known
	ended context.Context    // when the connection has ended
	end   context.CancelFunc // for the reader of events
}

// newLink creates the queue pair of an identifier and posts its receives.
func newLink(ctx context.Context, nic *verbs.Context, id *rdmacm.ID) (l *link, err error) {
	l = &link{id: id}
	l.ended, l.end = context.WithCancel(context.Background())
	if l.endpoint, err = newEndpoint(ctx, nic, echoMemory, true); err != nil {
		return nil, err
	}
	if l.qp, err = id.CreateQP(ctx, l.pd, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: l.cq, RecvCQ: l.cq, Cap: echoCapacity}); err != nil {
		return nil, err
	}
	for i := range uint64(echoes) {
		if err := l.post(i); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *link) post(i uint64) error {
	return l.qp.PostRecv(verbs.RecvWR{WRID: i, SGList: []verbs.SGE{l.mr.SGE(int(i)*echoSize, echoSize)}})
}

// close ends the connection and destroys its objects.
func (l *link) close() error {
	ctx, cancel := timeLimit()
	defer cancel()
	l.end()
	l.id.Disconnect(ctx) // EINVAL if the connection manager has ended the connection
	return errors.Join(l.endpoint.close(ctx, l.qp), l.id.Destroy(ctx))
}

func processID() []byte { return binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid())) }

func peerID(private []byte) int {
	if len(private) < 4 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(private))
}

// A server serves connections until the process ends.
type server struct {
	*process
	nic   *verbs.Context
	mu    sync.Mutex
	links map[*rdmacm.ID]*link
}

func (p *process) serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-p.stop
		cancel()
	}()
	s := &server{process: p, links: map[*rdmacm.ID]*link{}}
	var err error
	if s.nic, err = verbs.Open(ctx, nicB, verbs.WithSocket(p.socket)); err != nil {
		return err
	}
	m, err := rdmacm.Open(ctx, rdmacm.WithDevice(nicB), rdmacm.WithSocket(p.socket))
	if err != nil {
		return err
	}
	ch, err := m.CreateEventChannel(ctx)
	if err != nil {
		return err
	}
	listener, err := m.CreateID(ctx, ch, rdmacm.PSTCP, verbs.RC)
	if err != nil {
		return err
	}
	// The daemon may not have noticed yet that an earlier server was killed.
	for limit := time.Now().Add(stallLimit); ; time.Sleep(10 * time.Millisecond) {
		if err = listener.BindAddr(ctx, service); err == nil {
			break
		}
		if time.Now().After(limit) {
			return err
		}
	}
	if err := listener.Listen(ctx, 128); err != nil {
		return err
	}
	var running sync.WaitGroup
	for {
		e, err := ch.GetEvent(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		s.handle(e, &running)
	}
	for _, l := range s.links {
		l.end()
	}
	running.Wait()
	return errors.Join(m.Close(), s.nic.Close())
}

// handle handles an event. Connections are served by goroutines of their own.
func (s *server) handle(e *rdmacm.Event, running *sync.WaitGroup) {
	if e.Type == rdmacm.EventConnectRequest {
		running.Go(func() { s.accept(e) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Type {
	case rdmacm.EventDisconnected, rdmacm.EventRejected, rdmacm.EventUnreachable:
		if l := s.links[e.ID]; l != nil {
			l.end()
		}
	}
}

// accept accepts a connection and serves it.
func (s *server) accept(e *rdmacm.Event) {
	ctx, cancel := timeLimit()
	defer cancel()
	peer := peerID(e.Param.PrivateData)
	l, err := newLink(ctx, s.nic, e.ID)
	if err != nil {
		s.fail(fmt.Errorf("accept: %w", err))
		return
	}
	l.peer = peer
	s.mu.Lock()
	s.links[e.ID] = l
	s.mu.Unlock()
	err = e.ID.Accept(ctx, rdmacm.ConnParam{RNRRetryCount: 7, ResponderResources: 1, InitiatorDepth: 1, PrivateData: processID()})
	if err == nil {
		err = s.echo(l)
	}
	if err != nil && !s.stopped() {
		s.lost(peer, fmt.Errorf("connection from process %d: %w", peer, err))
	}
	s.mu.Lock()
	delete(s.links, e.ID)
	s.mu.Unlock()
	if err := l.close(); err != nil {
		s.fail(fmt.Errorf("close a connection: %w", err))
	}
}

// echo returns messages until the goodbye, and then waits for the end of the connection.
func (s *server) echo(l *link) error {
	wc := make([]verbs.WC, 2*echoes)
	for goodbye := false; ; {
		if err := l.cq.Wait(l.ended); err != nil {
			if goodbye {
				return nil
			}
			return fmt.Errorf("it ended without a goodbye: %w", err)
		}
		n, err := l.cq.Poll(wc)
		if err != nil {
			return err
		}
		for _, c := range wc[:n] {
			if err := c.Err(); err != nil {
				if goodbye { // the client does not wait for what follows it
					return nil
				}
				return err
			}
			if c.Opcode == verbs.WCSend {
				if err := l.post(c.WRID); err != nil {
					return err
				}
				continue
			}
			if c.ByteLen == 0 {
				goodbye = true
			} else if _, err := parse(l.mem[int(c.WRID)*echoSize:][:c.ByteLen]); err != nil {
				s.fail(fmt.Errorf("connection from process %d: %w", l.peer, err))
				return err
			}
			err := l.qp.PostSend(verbs.SendWR{WRID: c.WRID, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled,
				SGList: []verbs.SGE{l.mr.SGE(int(c.WRID)*echoSize, int(c.ByteLen))}})
			if err != nil {
				return err
			}
			s.did(bytesChecked, int(c.ByteLen))
		}
	}
}

// clients runs clients that connect, exchange messages and disconnect.
func (p *process) clients() error {
	ctx, cancel := timeLimit()
	defer cancel()
	nic, err := verbs.Open(ctx, nicA, verbs.WithSocket(p.socket))
	if err != nil {
		return err
	}
	m, err := rdmacm.Open(ctx, rdmacm.WithDevice(nicA), rdmacm.WithSocket(p.socket))
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for range p.qps {
		c := &client{process: p, manager: m, nic: nic, random: rand.New(rand.NewPCG(p.random.Uint64(), 5))}
		running.Go(func() {
			for !p.stopped() {
				if err := c.connect(); err != nil {
					p.lost(c.server, err)
					time.Sleep(100 * time.Millisecond) // the server may be starting
				}
			}
		})
	}
	running.Wait()
	return errors.Join(m.Close(), nic.Close())
}

// A client has one connection at a time.
type client struct {
	*process
	manager *rdmacm.Manager
	nic     *verbs.Context
	random  *rand.Rand
	ch      *rdmacm.EventChannel
	server  int // process ID of the server; 0 before it has accepted
	seq     uint64
}

// connect makes a connection, uses it and ends it. The error is one that the death of the server
// explains; others are reported at once.
func (c *client) connect() (err error) {
	ctx, cancel := timeLimit()
	defer cancel()
	c.server = 0
	if c.ch, err = c.manager.CreateEventChannel(ctx); err != nil {
		return err
	}
	id, err := c.manager.CreateID(ctx, c.ch, rdmacm.PSTCP, verbs.RC)
	if err != nil {
		return err
	}
	if err := id.ResolveAddr(ctx, netip.AddrPort{}, service, 5*time.Second); err != nil {
		return err
	}
	if _, err := c.await(ctx, rdmacm.EventAddrResolved); err != nil {
		return err
	}
	if err := id.ResolveRoute(ctx); err != nil {
		return err
	}
	if _, err := c.await(ctx, rdmacm.EventRouteResolved); err != nil {
		return err
	}
	l, err := newLink(ctx, c.nic, id)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, l.close())
		cleanup, cancel := timeLimit()
		defer cancel()
		err = errors.Join(err, c.ch.Close(cleanup))
	}()
	if err := id.Connect(ctx, rdmacm.ConnParam{RetryCount: 7, RNRRetryCount: 7, ResponderResources: 1, InitiatorDepth: 1, PrivateData: processID()}); err != nil {
		return err
	}
	e, err := c.await(ctx, rdmacm.EventConnectResponse)
	if e != nil && e.Type == rdmacm.EventRejected && e.Status == staleConnection {
		// The server has not received the DREQ of a former connection of the same queue pair
		// number.
		c.did("stale connections", 1)
		return nil
	}
	if err != nil {
		return err
	}
	c.server = peerID(e.Param.PrivateData)
	if err := id.Establish(ctx); err != nil {
		return fmt.Errorf("establish: %w", err)
	}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		// DISCONNECTED, or REJECTED if the server ends before the RTU has arrived. The exchange
		// that it interrupts reports it.
		if _, err := c.ch.GetEvent(l.ended); err == nil {
			l.end()
		}
	}()
	defer func() {
		l.end()
		<-watching
	}()
	for range 1 + c.random.IntN(30) {
		if c.stopped() {
			break
		}
		if err := c.exchange(l, 1+c.random.IntN(echoes/2)); err != nil {
			return err
		}
	}
	if err := c.exchange(l, 0); err != nil {
		return fmt.Errorf("goodbye: %w", err)
	}
	c.did("connections", 1)
	return nil
}

// await waits for an event.
func (c *client) await(ctx context.Context, want rdmacm.EventType) (*rdmacm.Event, error) {
	e, err := c.ch.GetEvent(ctx)
	if err == nil && e.Type != want {
		err = fmt.Errorf("event %v with status %d, want %v", e.Type, e.Status, want)
	}
	return e, err
}

// exchange sends n messages and checks what the server returns; 0 is the goodbye.
func (c *client) exchange(l *link, n int) error {
	ctx, cancel := context.WithTimeout(l.ended, stallLimit)
	defer cancel()
	first := c.seq + 1
	for i := range max(n, 1) {
		size := 0
		if n > 0 {
			size = max(length(c.random, echoSize), messageHeader)
			c.seq++
			compose(c.seq, l.mem[(echoes+i)*echoSize:][:size])
		}
		err := l.qp.PostSend(verbs.SendWR{WRID: uint64(echoes + i), Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled,
			SGList: []verbs.SGE{l.mr.SGE((echoes+i)*echoSize, size)}})
		if err != nil {
			return err
		}
	}
	wc, err := l.collect(ctx, 2*max(n, 1))
	if err != nil {
		return err
	}
	for _, w := range wc {
		if w.Opcode != verbs.WCRecv {
			continue
		}
		if n > 0 {
			seq, err := parse(l.mem[int(w.WRID)*echoSize:][:w.ByteLen])
			if err == nil && seq != first {
				err = fmt.Errorf("message %d was returned, want %d", seq, first)
			}
			if err != nil {
				c.fail(err)
				return err
			}
			first++
			c.did("messages echoed", 1)
			c.did(bytesChecked, int(w.ByteLen))
		}
		if err := l.post(w.WRID); err != nil {
			return err
		}
	}
	return nil
}
