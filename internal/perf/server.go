package perf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"softroce/verbs"
)

// A Server serves measurements of any number of clients.
type Server struct {
	Context  *verbs.Context
	GIDIndex int // or verbs.AnyGID
	Log      *slog.Logger
}

// Serve serves clients that connect to l until ctx ends or the daemon of its NIC stops. If once, it
// serves only the first. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener, once bool) error {
	defer l.Close()
	ctx, end := s.Context.WhileServed(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
		if once {
			return s.ServeConn(ctx, conn)
		}
		clients.Go(func() {
			if err := s.ServeConn(ctx, conn); err != nil && ctx.Err() == nil {
				s.Log.Warn("measurement failed", "client", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

// ServeConn serves one client, and closes conn.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	err := s.serveConn(ctx, conn)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // replaces the error of the closed connection
	}
	return err
}

func (s *Server) serveConn(ctx context.Context, conn net.Conn) error {
	t := newMessageConn(conn)
	var h request
	if err := t.receive(&h); err != nil {
		return err
	}
	if h.Version != version {
		err := fmt.Errorf("%w, version %d", ErrPeer, version)
		return errors.Join(err, t.send(response{Error: err.Error()}))
	}
	local, mtu, err := s.prepare(ctx, conn, h)
	defer local.close()
	if err != nil {
		return errors.Join(err, t.send(response{Version: version, Error: err.Error()}))
	}
	if err := t.send(response{Version: version, MTU: mtu, Endpoint: local.info}); err != nil {
		return err
	}
	return local.serve(ctx, t)
}

// prepare creates the server's endpoint for a request. The caller closes it, even after an error.
func (s *Server) prepare(ctx context.Context, conn net.Conn, h request) (*endpoint, int, error) {
	if err := h.Options.Validate(); err != nil {
		return &endpoint{}, 0, err
	}
	if len(h.Endpoint.QPs) != h.Options.QPs {
		return &endpoint{}, 0, fmt.Errorf("%w: it has %d queue pairs, want %d", ErrPeer, len(h.Endpoint.QPs), h.Options.QPs)
	}
	local, err := newEndpoint(ctx, s.Context, h.Options, true)
	if err != nil {
		return local, 0, err
	}
	if err := local.chooseGID(ctx, s.GIDIndex, conn, h.Endpoint.QPs[0].GID.Addr()); err != nil {
		return local, 0, err
	}
	mtu := min(local.info.MTU, h.Endpoint.MTU)
	if want := h.Options.MTU; want > mtu {
		return local, 0, fmt.Errorf("path MTU %d: the ports support at most %d", want, mtu)
	} else if want != 0 {
		mtu = want
	}
	if err := local.connect(ctx, h.Endpoint, mtu); err != nil {
		return local, 0, err
	}
	if local.sendsData() {
		local.fill()
	}
	return local, mtu, nil
}

// serve keeps receives posted, if the operation needs them, until the client has finished, and then
// verifies the data.
func (s *endpoint) serve(ctx context.Context, t *messageConn) error {
	ctx, stop := context.WithCancel(ctx)
	received := make(chan error, 1)
	if s.o.Op == Send {
		if err := s.postRecvs(); err != nil {
			stop()
			return err
		}
		go func() { received <- s.receive(ctx) }()
	} else {
		received <- nil
	}
	var f summary
	err := t.receive(&f)
	if s.o.Type != RC {
		time.Sleep(settleTime) // the last messages may still be in flight
	}
	stop()
	if rerr := <-received; err == nil {
		err = rerr
	}
	if err != nil || f.Failed {
		return err
	}
	var v verdict
	for _, n := range s.received {
		v.Received += n
	}
	switch {
	case s.o.Type != RC:
		if !s.slotsPlausible() {
			v.Error = "wrong data: the server received bytes that were not sent"
		}
	case s.o.Op == Atomic:
		if got := s.sumCounters(); got != f.Operations {
			v.Error = fmt.Sprintf("wrong data: %d operations added up to %d", f.Operations, got)
		}
	default:
		if got := s.checksum(); got != f.Checksum {
			v.Error = fmt.Sprintf("wrong data: checksum %#x at the server, %#x at the client", got, f.Checksum)
		}
	}
	return t.send(v)
}

// settleTime is how long unacknowledged messages may take to arrive.
const settleTime = 50 * time.Millisecond

func (s *endpoint) recvBatch(i int) []verbs.RecvWR {
	batch := make([]verbs.RecvWR, s.o.recvDepth())
	wr := verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{s.mr.SGE(i*s.o.stride(), s.o.header()+s.o.Size)}}
	for j := range batch {
		batch[j] = wr
	}
	return batch
}

func (s *endpoint) postRecvs() error {
	for i, q := range s.qps {
		if err := q.PostRecv(s.recvBatch(i)...); err != nil {
			return err
		}
	}
	return nil
}

// receive reposts consumed receives, a batch at a time, until ctx ends.
func (s *endpoint) receive(ctx context.Context) error {
	batches := make([][]verbs.RecvWR, len(s.qps))
	for i := range batches {
		batches[i] = s.recvBatch(i)
	}
	consumed := make([]int, len(s.qps))
	var wc [64]verbs.WC
	for armed := false; ; {
		n, err := s.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		for i := range n {
			if err := wc[i].Err(); err != nil {
				return err
			}
			q := wc[i].WRID
			s.received[q]++
			if consumed[q]++; consumed[q] >= s.o.refill() {
				if err := s.qps[q].PostRecv(batches[q][:consumed[q]]...); err != nil {
					return err
				}
				consumed[q] = 0
			}
		}
		switch {
		case n > 0:
			continue
		case !armed: // poll again after arming: earlier completions cause no event
			// If a solicited message may be lost, any completion must wake the server.
			if err := s.cq.Arm(s.o.Type == RC); err != nil {
				return err
			}
			armed = true
			continue
		}
		if _, err := s.events.GetEvent(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		armed = false
	}
}
