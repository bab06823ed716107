package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
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
// index of the GID to use, or verbs.AnyGID.
func Measure(ctx context.Context, conn net.Conn, c *verbs.Context, gid int, o Options) (*Result, error) {
	defer conn.Close()
	ctx, end := c.WhileServed(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r, err := measure(ctx, newMessageConn(conn), c, gid, o)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // replaces the error of the closed connection
	}
	return r, err
}

func measure(ctx context.Context, t *messageConn, c *verbs.Context, gid int, o Options) (*Result, error) {
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
	return r, s.run(ctx, t, a.Endpoint, r)
}

// run runs both phases and verifies the data on both sides.
func (s *endpoint) run(ctx context.Context, t *messageConn, peer endpointInfo, r *Result) error {
	if s.sendsData() {
		s.fill()
	}
	l := newLoad(s, peer)
	samples, err := l.latency(ctx)
	if err == nil {
		r.Latency = summarize(samples)
		var n uint64
		var elapsed time.Duration
		n, elapsed, err = l.bandwidth(ctx)
		r.setCount(n, elapsed)
	}
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
