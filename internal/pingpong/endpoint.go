package pingpong

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"softroce/internal/rendezvous"
	"softroce/verbs"
)

// Work request IDs.
const (
	recvID = 1
	sendID = 2
)

// endpoint is one side of a run.
type endpoint struct {
	ctx    context.Context
	o      Options
	out    io.Writer
	server bool
	result Result

	c    *verbs.Context
	pd   *verbs.PD
	buf  *verbs.Buffer
	mr   *verbs.MR          // receive buffer, followed by the send buffer
	ch   *verbs.CompChannel // with Options.Events
	cq   *verbs.CQ
	qp   *verbs.QP
	gid  int
	wc   [8]verbs.WC
	recv int // receives posted

	received, sent int // completed messages
}

func (e *endpoint) open(c *verbs.Context) (err error) {
	e.c = c
	if e.pd, err = c.AllocPD(e.ctx); err != nil {
		return err
	}
	if e.buf, err = c.AllocBuffer(2 * e.o.Size); err != nil {
		return err
	}
	if e.mr, err = e.pd.RegMR(e.ctx, e.buf.Bytes()[:2*e.o.Size], verbs.AccessLocalWrite); err != nil {
		return err
	}
	if e.o.Events {
		if e.ch, err = c.CreateCompChannel(e.ctx); err != nil {
			return err
		}
	}
	if e.cq, err = c.CreateCQ(e.ctx, e.o.RxDepth+1, e.ch); err != nil {
		return err
	}
	e.qp, err = e.pd.CreateQP(e.ctx, verbs.QPInitAttr{
		QPType: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: uint32(e.o.RxDepth), MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return err
}

func (e *endpoint) close() {
	if e.qp != nil {
		e.qp.Close(context.Background())
	}
	if e.cq != nil {
		e.cq.Close(context.Background())
	}
	if e.ch != nil {
		e.ch.Close(context.Background())
	}
	if e.mr != nil {
		e.mr.Close(context.Background())
	}
	if e.buf != nil {
		e.buf.Close()
	}
	if e.pd != nil {
		e.pd.Close(context.Background())
	}
}

// chooseGID selects the GID to send to the peer: that of GIDIndex, else the local address of the
// TCP connection, else the first GID that can reach the peer's.
func (e *endpoint) chooseGID(tcp, peer netip.Addr) error {
	gids, err := e.c.GIDs(e.ctx)
	if err != nil {
		return err
	}
	e.gid = e.o.GIDIndex
	if e.gid == verbs.AnyGID {
		e.gid = rendezvous.PickGID(gids, tcp, peer)
	}
	info, err := e.qp.Info(e.ctx, e.gid)
	if err != nil {
		return fmt.Errorf("%s: %w", e.c.Device(), err)
	}
	e.result.Local = Dest{LID: info.LID, QPN: info.QPN, PSN: info.PSN, GID: info.GID}
	fmt.Fprintf(e.out, "  local address:  %v\n", e.result.Local)
	return nil
}

// localACKTimeout is the code of 0.54 s, eight times that of ibv_rc_pingpong. A peer in an emulated
// guest on a busy machine may need longer than ibv_rc_pingpong's eight times 67 ms to answer the
// first message.
const localACKTimeout = 17

func (e *endpoint) connect(remote Dest) error {
	e.result.Remote = remote
	o := verbs.DefaultConnectOptions()
	o.GIDIndex = e.gid
	o.PathMTU, _ = verbs.ParseMTU(e.o.MTU)
	o.Access = 0
	o.MaxRdAtomic, o.MaxDestRdAtomic = 1, 1
	o.Timeout = localACKTimeout
	peer := verbs.Info{QPN: remote.QPN, PSN: remote.PSN, GID: remote.GID, LID: remote.LID}
	if err := e.qp.Connect(e.ctx, peer, o); err != nil {
		return err
	}
	return e.postRecvs()
}

// postRecvs fills the receive queue. All receives share one buffer, as there is one message at a
// time.
func (e *endpoint) postRecvs() error {
	sge := []verbs.SGE{e.mr.SGE(0, e.o.Size)}
	for e.recv < e.o.RxDepth {
		if err := e.qp.PostRecv(verbs.RecvWR{WRID: recvID, SGList: sge}); err != nil {
			return err
		}
		e.recv++
	}
	return nil
}

// run sends and receives o.Iters messages. The server returns each message.
func (e *endpoint) run() error {
	fmt.Fprintf(e.out, "  remote address: %v\n", e.result.Remote)
	start := time.Now()
	for i := range e.o.Iters {
		var err error
		if e.server {
			err = e.pong(i)
		} else {
			err = e.ping(i)
		}
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	e.result.Elapsed = time.Since(start)
	e.result.Iters = e.o.Iters
	e.result.Bytes = int64(e.o.Size) * int64(e.o.Iters) * 2
	e.report()
	return nil
}

func (e *endpoint) report() {
	r := &e.result
	s := r.Elapsed.Seconds()
	fmt.Fprintf(e.out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", r.Bytes, s, float64(r.Bytes)*8/s/1e6)
	fmt.Fprintf(e.out, "%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, s, s*1e6/float64(r.Iters))
}

// ping sends message i and waits for its return.
func (e *endpoint) ping(i int) error {
	message := e.buf.Bytes()[e.o.Size : 2*e.o.Size]
	if e.o.Check || i == 0 {
		fill(message, seedFor(uint32(i), e.o.Size))
	}
	if err := e.send(e.o.Size); err != nil {
		return err
	}
	if err := e.waitFor(i+1, i+1); err != nil {
		return err
	}
	if e.o.Check {
		return e.verify(message)
	}
	return nil
}

// pong waits for message i and returns it from the receive buffer. The client sends the next
// message only after it has received this one.
func (e *endpoint) pong(i int) error {
	if err := e.waitFor(i+1, i); err != nil {
		return err
	}
	if e.o.Check {
		want := e.buf.Bytes()[e.o.Size : 2*e.o.Size]
		fill(want, seedOf(e.buf.Bytes()[:e.o.Size]))
		if err := e.verify(want); err != nil {
			return err
		}
	}
	if err := e.send(0); err != nil {
		return err
	}
	if i+1 == e.o.Iters {
		return e.waitFor(i+1, i+1)
	}
	return nil
}

func (e *endpoint) send(offset int) error {
	return e.qp.PostSend(verbs.SendWR{
		WRID: sendID, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled,
		SGList: []verbs.SGE{e.mr.SGE(offset, e.o.Size)},
	})
}

// waitFor polls completions until the given numbers of messages, counted from the start, have been
// received and sent.
func (e *endpoint) waitFor(arrived, sent int) error {
	for e.received < arrived || e.sent < sent {
		n, err := e.poll()
		if err != nil {
			return err
		}
		for i := range n {
			if err := e.complete(&e.wc[i]); err != nil {
				return err
			}
		}
	}
	if e.recv == 0 {
		return e.postRecvs()
	}
	return nil
}

func (e *endpoint) complete(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	if wc.WRID == sendID {
		e.sent++
		return nil
	}
	e.received++
	e.recv--
	if int(wc.ByteLen) != e.o.Size {
		return fmt.Errorf("%w: message of %d bytes, want %d: use the same size at both ends", ErrData, wc.ByteLen, e.o.Size)
	}
	return nil
}

// poll returns completions. Without events it spins for a while; then Wait yields the processor,
// which the engine and the peer may need. With events it sleeps at once.
func (e *endpoint) poll() (int, error) {
	for armed := false; ; {
		n, err := e.cq.Poll(e.wc[:])
		switch {
		case n > 0 || err != nil:
			return n, err
		case !e.o.Events:
			err = e.cq.Wait(e.ctx)
		case !armed: // poll again after arming: earlier completions cause no event
			armed = true
			err = e.cq.Arm(false)
		default:
			armed = false
			_, err = e.ch.GetEvent(e.ctx)
		}
		if err != nil {
			return 0, err
		}
	}
}

func (e *endpoint) verify(want []byte) error {
	got := e.buf.Bytes()[:e.o.Size]
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%w: byte %d is %#02x, want %#02x", ErrData, i, got[i], want[i])
		}
	}
	return nil
}
