package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"softroce/verbs"
)

// DefaultPort is the default TCP port of a Server.
const DefaultPort = 18516

// Dial connects to the server at host:port and runs a measurement.
func Dial(ctx context.Context, host string, port int, c *verbs.Context, gid int, o Options) (*Result, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("no perf server: %w (start one with: softroce perf --server)", err)
	}
	return Measure(ctx, conn, c, gid, o)
}

// Measure runs o on c's NIC with the server at the other end of conn, and closes conn. gid is the
// index of the GID to use, or verbs.AnyGID. If ctx ends while packets are measured, Measure stops,
// verifies what has arrived, and returns what it has measured together with the cause; the result
// is nil if it has nothing.
func Measure(ctx context.Context, conn net.Conn, c *verbs.Context, gid int, o Options) (*Result, error) {
	defer conn.Close()
	served, end := c.WhileServed(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(served, func() { conn.Close() })()
	var m measurement
	defer context.AfterFunc(ctx, func() { m.interrupt(end) })()
	r, err := m.measure(served, newMessageConn(conn), c, gid, o)
	switch {
	case err == nil && !r.Interrupted:
	case ctx.Err() != nil:
		err = context.Cause(ctx) // replaces the error of the closed connection
	case served.Err() != nil:
		err = context.Cause(served)
	}
	return r, err
}

// A measurement is a run of a client that can be interrupted.
type measurement struct {
	mu   sync.Mutex
	load *load // while it runs
}

// interruptTime is how long an interrupted measurement may take to wait for the operations that are
// outstanding, and for the server's verdict.
const interruptTime = 2 * time.Second

// interrupt stops the measurement. end ends it at once.
func (m *measurement) interrupt(end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.load == nil {
		end()
		return
	}
	m.load.stop.Store(true)
	time.AfterFunc(interruptTime, end)
}

func (m *measurement) measure(ctx context.Context, t *messageConn, c *verbs.Context, gid int, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s, err := newEndpoint(ctx, c, o, false)
	defer s.close()
	if err != nil {
		return nil, err
	}
	if err := s.chooseGID(ctx, gid, t.conn, netip.Addr{}); err != nil {
		return nil, err
	}
	if err := t.send(request{version, o, s.info}); err != nil {
		return nil, err
	}
	var a response
	if err := t.receive(&a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, fmt.Errorf("server: %s", a.Error)
	}
	if a.Version != version {
		return nil, fmt.Errorf("%w, version %d", ErrPeer, version)
	}
	if err := s.connect(ctx, a.Endpoint, a.MTU); err != nil {
		return nil, err
	}
	r := &Result{
		Op: o.Op, Type: o.Type, Size: o.Size, QPs: o.QPs, Depth: o.Depth, MTU: a.MTU,
		Local:  Address{s.info.Device, s.info.QPs[0].GID.Addr().String()},
		Remote: Address{a.Endpoint.Device, a.Endpoint.QPs[0].GID.Addr().String()},
	}
	if s.sendsData() {
		s.fill()
	}
	l := newLoad(s, a.Endpoint)
	m.mu.Lock()
	m.load = l
	m.mu.Unlock()
	if err := l.run(ctx, t, r); err != nil {
		return nil, err
	}
	return r, nil
}

// run runs both phases and verifies the data on both sides.
func (l *load) run(ctx context.Context, t *messageConn, r *Result) error {
	s := l.endpoint
	samples, err := l.latency(ctx)
	if err == nil && !l.stop.Load() {
		var n uint64
		var elapsed time.Duration
		n, elapsed, err = l.bandwidth(ctx)
		r.setCount(n, elapsed)
	}
	r.Latency, r.Interrupted = summarize(samples), l.stop.Load()
	if terr := t.send(summary{Operations: l.completed, Failed: err != nil, Checksum: s.checksum()}); err == nil {
		err = terr
	}
	if err != nil {
		return err
	}
	var v verdict
	if err := t.receive(&v); err != nil {
		return err
	}
	if v.Error != "" {
		return errors.New(v.Error)
	}
	r.Checked = true
	if s.o.Type != RC && s.o.Op == Send {
		r.Sent, r.Received = l.completed, &v.Received
	}
	return nil
}
