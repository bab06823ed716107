package verbspeer

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"softroce/verbs"
)

// An Endpoint is one end of an exchange: a connected queue pair and its memory.
type Endpoint struct {
	Buffer []byte

	o             Options
	server        bool
	cq            *verbs.CQ
	qp            *verbs.QP
	mr            *verbs.MR
	shared        *verbs.Buffer
	pd            *verbs.PD
	local, remote connInfo
	conn          net.Conn
	lines         *bufio.Reader
}

// A connInfo is what one end sends to the other to connect.
type connInfo struct {
	qpn, psn, rkey uint32
	gid            verbs.GID
	addr, length   uint64
}

// The depths of vprobe's queues.
const (
	cqDepth = 1024
	sqDepth = 256
	rqDepth = 512
)

// Open creates an endpoint on a NIC. Its buffer has the initial contents of a server or a client.
func Open(nic *verbs.Context, o Options, server bool) (*Endpoint, error) {
	e := &Endpoint{o: o, server: server}
	if err := e.open(nic); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) open(nic *verbs.Context) (err error) {
	if e.pd, err = nic.AllocPD(context.Background()); err != nil {
		return err
	}
	e.Buffer = Pattern(e.o.Size, e.server)
	if e.o.Shared {
		if e.shared, err = nic.AllocBuffer(e.o.Size); err != nil {
			return err
		}
		copy(e.shared.Bytes(), e.Buffer)
		e.Buffer = e.shared.Bytes()[:e.o.Size]
	}
	if e.mr, err = e.pd.RegMR(context.Background(), e.Buffer, e.o.Access); err != nil {
		return err
	}
	if e.cq, err = nic.CreateCQ(context.Background(), cqDepth, nil); err != nil {
		return err
	}
	e.qp, err = e.pd.CreateQP(context.Background(), verbs.QPInitAttr{
		QPType: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: sqDepth, MaxRecvWR: rqDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	gids, err := nic.GIDs(context.Background())
	if err != nil {
		return err
	}
	e.local = connInfo{
		qpn: e.qp.QPNum(), psn: uint32(e.o.PSN), rkey: e.mr.RKey(), addr: e.mr.Addr(), length: e.mr.Length(),
	}
	if e.o.PSN < 0 {
		e.local.psn = rand.Uint32()
	}
	e.local.psn &= 0xffffff
	for _, g := range gids {
		if g.Index == e.o.GIDIndex {
			e.local.gid = g.GID
			return nil
		}
	}
	return fmt.Errorf("no GID with index %d among %v", e.o.GIDIndex, gids)
}

// Close releases everything, including the connection to the peer.
func (e *Endpoint) Close() error {
	var errs []error
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	if e.qp != nil {
		errs = append(errs, e.qp.Close(context.Background()))
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close(context.Background()))
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Close(context.Background()))
	}
	if e.shared != nil {
		errs = append(errs, e.shared.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close(context.Background()))
	}
	return errors.Join(errs...)
}

// Connect exchanges the lines of text with the peer and connects the queue pair. A client returns
// when the server is ready. The endpoint closes conn.
func (e *Endpoint) Connect(ctx context.Context, conn net.Conn) error {
	e.conn, e.lines = conn, bufio.NewReader(conn)
	if limit, ok := ctx.Deadline(); ok {
		conn.SetDeadline(limit)
	}
	if _, err := fmt.Fprintf(conn, "%06x %06x %s %08x %016x %d\n", e.local.qpn, e.local.psn,
		hex.EncodeToString(e.local.gid[:]), e.local.rkey, e.local.addr, e.local.length); err != nil {
		return err
	}
	if err := e.readPeer(); err != nil {
		return fmt.Errorf("peer's line: %w", err)
	}
	if err := e.toRTS(); err != nil {
		return err
	}
	if e.server {
		return nil
	}
	if line, err := e.lines.ReadString('\n'); err != nil {
		return fmt.Errorf("the server did not send go: %q: %w", line, err)
	}
	return nil
}

func (e *Endpoint) readPeer() error {
	line, err := e.lines.ReadString('\n')
	if err != nil {
		return err
	}
	var gid string
	if _, err := fmt.Sscanf(line, "%x %x %32s %x %x %d", &e.remote.qpn, &e.remote.psn, &gid, &e.remote.rkey, &e.remote.addr, &e.remote.length); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	raw, err := hex.DecodeString(gid)
	if err != nil || len(raw) != len(e.remote.gid) {
		return fmt.Errorf("GID %q: %w", gid, err)
	}
	copy(e.remote.gid[:], raw)
	return nil
}

// toRTS takes the queue pair to RTS with one Modify for each state, as vprobe does.
func (e *Endpoint) toRTS() error {
	mtu, ok := verbs.ParseMTU(e.o.MTU)
	if !ok {
		return fmt.Errorf("no path MTU has %d bytes", e.o.MTU)
	}
	steps := []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{
			verbs.QPAttr{QPState: verbs.QPSInit, PortNum: 1, QPAccessFlags: e.o.Access &^ verbs.AccessLocalWrite},
			verbs.QPMaskState | verbs.QPMaskPKeyIndex | verbs.QPMaskPort | verbs.QPMaskAccessFlags,
		},
		{
			verbs.QPAttr{
				QPState: verbs.QPSRTR, DestQPNum: e.remote.qpn, RQPSN: e.remote.psn, PathMTU: mtu,
				MaxDestRdAtomic: uint8(e.o.RdIn), MinRNRTimer: uint8(e.o.MinRNR),
				AHAttr: verbs.AHAttr{PortNum: 1, GRH: verbs.GlobalRoute{
					DGID: e.remote.gid, SGIDIndex: uint8(e.o.GIDIndex), HopLimit: 64,
				}},
			},
			verbs.QPMaskState | verbs.QPMaskAV | verbs.QPMaskPathMTU | verbs.QPMaskDestQPN | verbs.QPMaskRQPSN |
				verbs.QPMaskMaxDestRdAtomic | verbs.QPMaskMinRNRTimer,
		},
		{
			verbs.QPAttr{
				QPState: verbs.QPSRTS, SQPSN: e.local.psn, Timeout: uint8(e.o.Timeout), RetryCnt: uint8(e.o.Retry),
				RNRRetry: uint8(e.o.RNRRetry), MaxRdAtomic: uint8(e.o.RdOut),
			},
			verbs.QPMaskState | verbs.QPMaskSQPSN | verbs.QPMaskTimeout | verbs.QPMaskRetryCnt |
				verbs.QPMaskRNRRetry | verbs.QPMaskMaxQPRdAtomic,
		},
	}
	for _, s := range steps {
		if err := e.qp.Modify(context.Background(), &s.attr, s.mask); err != nil {
			return fmt.Errorf("to %v: %w", s.attr.QPState, err)
		}
	}
	return nil
}

// Run runs a client's operations and returns their completions in order. It fails if one does not
// complete before ctx ends.
func (e *Endpoint) Run(ctx context.Context, ops []Op) ([]verbs.WC, error) {
	var done []verbs.WC
	posted := 0
	wait := func() error {
		for len(done) < posted {
			wcs, err := e.next(ctx)
			if err != nil {
				return fmt.Errorf("completion %d of %d: %w", len(done)+1, posted, err)
			}
			done = append(done, wcs...)
		}
		return nil
	}
	for i, op := range ops {
		if op.Name == "sleep" {
			time.Sleep(op.sleepTime())
			continue
		}
		wr := op.request(e.mr, e.remote)
		wr.WRID = uint64(i)
		if err := e.qp.PostSend(wr); err != nil {
			return done, fmt.Errorf("%s: %w", op.Text, err)
		}
		posted++
		if !op.NoWait {
			if err := wait(); err != nil {
				return done, fmt.Errorf("%s: %w", op.Text, err)
			}
		}
	}
	return done, wait()
}

// Serve posts a server's receives, says "go" and collects completions until the client closes the
// connection.
func (e *Endpoint) Serve(ctx context.Context) ([]verbs.WC, error) {
	disconnected := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, e.lines)
		disconnected <- err
	}()
	if e.o.Late == 0 {
		if err := e.postAll(); err != nil {
			return nil, err
		}
	}
	if _, err := io.WriteString(e.conn, "go 00000000\n"); err != nil {
		return nil, err
	}
	var late <-chan time.Time
	if e.o.Late > 0 {
		late = time.After(e.o.Late)
	}
	var done []verbs.WC
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		wcs, err := e.poll()
		if err != nil {
			return done, err
		}
		done = append(done, wcs...)
		for _, wc := range wcs {
			if wc.Status == verbs.WCSuccess && !e.o.NoRepost {
				if err := e.postRecv(int(wc.WRID)); err != nil {
					return done, err
				}
			}
		}
		select {
		case <-late:
			if err := e.postAll(); err != nil {
				return done, err
			}
		case err := <-disconnected:
			last, perr := e.poll()
			return append(done, last...), errors.Join(err, perr)
		case <-ctx.Done():
			return done, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (e *Endpoint) postAll() error {
	for i := range e.o.Recvs {
		if err := e.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (e *Endpoint) postRecv(i int) error {
	at := slot(i, e.o.RecvSize, e.o.Size)
	return e.qp.PostRecv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{e.mr.SGE(at, e.o.RecvSize)}})
}

// next waits for completions.
func (e *Endpoint) next(ctx context.Context) ([]verbs.WC, error) {
	if err := e.cq.Wait(ctx); err != nil {
		return nil, err
	}
	return e.poll()
}

func (e *Endpoint) poll() ([]verbs.WC, error) {
	var wc [16]verbs.WC
	n, err := e.cq.Poll(wc[:])
	return wc[:n], err
}
