package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"softroce/verbs"
)

// A connected pair works in rounds of up to slots operations, posted at once. Each has a slot in
// every part of an endpoint's memory, so that it can be judged by itself.
const (
	slots    = 8
	slotSize = 32 << 10

	source  = 0 * slots * slotSize // what it sends or writes
	result  = 1 * slots * slotSize // where what it reads arrives
	target  = 2 * slots * slotSize // what the peer writes and reads
	receive = 3 * slots * slotSize // what it receives
	memory  = 4 * slots * slotSize
)

var capacity = verbs.QPCap{MaxSendWR: 2 * slots, MaxRecvWR: 2 * slots, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}

// rcOperations are those of a round, xrcOperations the ones that XRC has, too.
var (
	xrcOperations = []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead,
		verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd}
	rcOperations = append(slices.Clone(xrcOperations), verbs.WRAtomicWrite, verbs.WRFlush)
)

// A pair is two connected queue pairs. x requests and y responds.
type pair struct {
	*process
	random     *rand.Rand
	kind       string // RC: "", SRQ or XRC
	operations []verbs.WROpcode
	x, y       *endpoint
	qx, qy     *verbs.QP
	recv       func(...verbs.RecvWR) error // of y
	srqn       uint32                      // XRC: of y's SRQ
	window     *verbs.MW                   // of y; not with XRC
	ofX, ofY   []closer                    // in the order in which they are closed
}

func reliable(kind string) workload {
	return func(p *process, r *rand.Rand, a, b *verbs.Context) error {
		if r.IntN(2) == 0 {
			a, b = b, a
		}
		ctx, cancel := timeLimit()
		defer cancel()
		t, err := newPair(ctx, p, r, kind, a, b)
		if err != nil {
			return fmt.Errorf("%spair: %w", kind, err)
		}
		for i := 0; i < rounds && !p.stopped(); i++ {
			if err := t.round(); err != nil {
				return fmt.Errorf("%spair: %w", kind, err)
			}
		}
		p.did("pairs connected", 1)
		ctx, cancel = timeLimit()
		defer cancel()
		return errors.Join(t.x.close(ctx, t.ofX...), t.y.close(ctx, t.ofY...))
	}
}

func newPair(ctx context.Context, p *process, r *rand.Rand, kind string, a, b *verbs.Context) (t *pair, err error) {
	t = &pair{process: p, random: r, kind: kind, operations: rcOperations}
	if t.x, err = newEndpoint(ctx, a, memory, p.mapped || r.IntN(2) == 0); err != nil {
		return nil, err
	}
	if t.y, err = newEndpoint(ctx, b, memory, p.mapped || r.IntN(2) == 0); err != nil {
		return nil, err
	}
	if kind == "XRC " {
		err = t.createXRC(ctx)
	} else {
		err = t.createRC(ctx)
	}
	if err != nil {
		return nil, err
	}
	return t, connectPair(ctx, r, t.qx, t.qy)
}

func (t *pair) createRC(ctx context.Context) (err error) {
	init := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: t.x.cq, RecvCQ: t.x.cq, Cap: capacity}
	if t.qx, err = t.x.pd.CreateQP(ctx, init); err != nil {
		return err
	}
	init.SendCQ, init.RecvCQ = t.y.cq, t.y.cq
	var users []closer
	if t.kind != "" {
		if init.SRQ, err = t.y.pd.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 2 * slots, MaxSGE: 2}); err != nil {
			return err
		}
		users = append(users, init.SRQ)
	}
	if t.qy, err = t.y.pd.CreateQP(ctx, init); err != nil {
		return err
	}
	if t.recv = t.qy.PostRecv; init.SRQ != nil {
		t.recv = init.SRQ.PostRecv
	}
	if t.window, err = t.y.pd.AllocMW(ctx, verbs.MWType2); err != nil {
		return err
	}
	t.ofX, t.ofY = []closer{t.qx}, append([]closer{t.qy, t.window}, users...)
	return nil
}

func (t *pair) createXRC(ctx context.Context) (err error) {
	t.operations = xrcOperations
	if t.qx, err = t.x.pd.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.XRCSend, SendCQ: t.x.cq, Cap: capacity}); err != nil {
		return err
	}
	domain, err := t.y.nic.OpenXRCD(ctx, nil, os.O_CREATE)
	if err != nil {
		return err
	}
	srq, err := t.y.pd.CreateXRCSRQ(ctx, verbs.SRQAttr{MaxWR: 2 * slots, MaxSGE: 2}, domain, t.y.cq)
	if err != nil {
		return err
	}
	if t.qy, err = domain.CreateQP(ctx); err != nil {
		return err
	}
	t.recv, t.srqn = srq.PostRecv, srq.Number()
	t.ofX, t.ofY = []closer{t.qx}, []closer{t.qy, srq, domain}
	return nil
}

// slot returns the slot of an operation in a part of an endpoint's memory.
func slot(e *endpoint, part, i int) []byte { return e.mem[part+i*slotSize:][:slotSize] }

// A step is an operation of a round.
type step struct {
	t        *pair
	i        int
	wr       verbs.SendWR
	n        int    // bytes
	received bool   // it completes a receive
	want     []byte // y's target afterwards
	read     []byte // what x reads
}

// round carries out operations and judges them.
func (t *pair) round() error {
	ctx, cancel := timeLimit()
	defer cancel()
	if t.window != nil && t.random.IntN(8) == 0 {
		return t.useWindow(ctx)
	}
	var steps []*step
	received := 0
	for i := range 1 + t.random.IntN(slots) {
		s := t.newStep(i)
		if s.received {
			received++
			if err := t.recv(verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{t.y.mr.SGE(receive+i*slotSize, slotSize)}}); err != nil {
				return err
			}
		}
		steps = append(steps, s)
		if err := t.qx.PostSend(s.wr); err != nil {
			return err
		}
	}
	if _, err := t.x.collect(ctx, len(steps)); err != nil {
		return err
	}
	arrived, err := t.y.collect(ctx, received)
	if err != nil {
		return fmt.Errorf("receives: %w", err)
	}
	for _, s := range steps {
		if err := s.judge(arrived); err != nil {
			return fmt.Errorf("%v of %d bytes: %w", s.wr.Opcode, s.n, err)
		}
		t.did(t.kind+s.wr.Opcode.String(), 1)
	}
	return nil
}

// newStep chooses an operation. Its slot is prepared, and what is expected of it is known.
func (t *pair) newStep(i int) *step {
	r := t.random
	s := &step{t: t, i: i, n: length(r, slotSize)}
	s.wr = verbs.SendWR{WRID: uint64(i), Opcode: t.operations[r.IntN(len(t.operations))], SendFlags: verbs.SendSignaled, RemoteSRQN: t.srqn}
	there := slot(t.y, target, i)
	fill(r, there[:s.n])
	s.want = slices.Clone(there)
	switch s.wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithImm:
		s.received = true
		s.send(0)
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		s.received = s.wr.Opcode == verbs.WRRDMAWriteWithImm
		at := r.IntN(slotSize - s.n + 1)
		s.send(at)
		copy(s.want[at:], slot(t.x, source, i)[:s.n])
	case verbs.WRAtomicWrite:
		s.n = 8
		s.send(0)
		s.wr.SGList = []verbs.SGE{t.x.mr.SGE(source+i*slotSize, 8)}
		copy(s.want, slot(t.x, source, i)[:8])
	case verbs.WRRDMARead:
		at := r.IntN(slotSize - s.n + 1)
		s.remote(at)
		s.read = s.want[at:][:s.n]
	case verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		s.n = 8
		s.remote(0)
		s.atomic()
	case verbs.WRFlush:
		s.remote(0)
		s.wr.SGList, s.wr.FlushLength, s.wr.FlushPlacement = nil, uint32(s.n), verbs.FlushGlobal
	}
	if s.wr.Opcode == verbs.WRSendWithImm || s.wr.Opcode == verbs.WRRDMAWriteWithImm {
		s.wr.Imm = r.Uint32()
	}
	return s
}

// remote names y's target and x's result.
func (s *step) remote(at int) {
	s.wr.RemoteAddr, s.wr.RKey = s.t.y.mr.Addr()+uint64(target+s.i*slotSize+at), s.t.y.mr.RKey()
	s.wr.SGList = []verbs.SGE{s.t.x.mr.SGE(result+s.i*slotSize, s.n)}
}

// send fills the source, which the work request names as inline data, or in one or two pieces.
func (s *step) send(at int) {
	t, r := s.t, s.t.random
	s.remote(at)
	from := slot(t.x, source, s.i)[:s.n]
	fill(r, from)
	cut := r.IntN(s.n)
	switch {
	case s.n <= int(capacity.MaxInlineData) && r.IntN(2) == 0:
		s.wr.SendFlags |= verbs.SendInline
		s.wr.SGList, s.wr.Inline = nil, from
	case cut > 0:
		s.wr.SGList = []verbs.SGE{t.x.mr.SGE(source+s.i*slotSize, cut), t.x.mr.SGE(source+s.i*slotSize+cut, s.n-cut)}
	default:
		s.wr.SGList = []verbs.SGE{t.x.mr.SGE(source+s.i*slotSize, s.n)}
	}
}

// atomic sets the operands. Half of the swaps are refused.
func (s *step) atomic() {
	r := s.t.random
	before := binary.NativeEndian.Uint64(s.want)
	s.read = slices.Clone(s.want[:8])
	after := before
	switch {
	case s.wr.Opcode == verbs.WRAtomicFetchAndAdd:
		s.wr.CompareAdd = r.Uint64()
		after = before + s.wr.CompareAdd
	case r.IntN(2) == 0:
		s.wr.CompareAdd, s.wr.Swap = before, r.Uint64()
		after = s.wr.Swap
	default:
		s.wr.CompareAdd, s.wr.Swap = ^before, r.Uint64()
	}
	binary.NativeEndian.PutUint64(s.want, after)
}

// judge compares what an operation did with what it should have done.
func (s *step) judge(arrived []verbs.WC) error {
	t := s.t
	if err := different("the peer's memory", slot(t.y, target, s.i), s.want); err != nil {
		return err
	}
	t.did(bytesChecked, slotSize+len(s.read))
	if err := different("what was read", slot(t.x, result, s.i)[:len(s.read)], s.read); err != nil {
		return err
	}
	if !s.received {
		return nil
	}
	// Receives complete in the order in which they were posted, that of the steps.
	wc := arrived[slices.IndexFunc(arrived, func(c verbs.WC) bool { return c.WRID == uint64(s.i) })]
	if int(wc.ByteLen) != s.n && s.wr.Opcode != verbs.WRRDMAWriteWithImm || wc.WCFlags&verbs.WCWithImm != 0 && wc.Imm != s.wr.Imm {
		return fmt.Errorf("its receive completed with %+v, want %d bytes and immediate data %#x", wc, s.n, s.wr.Imm)
	}
	if s.wr.Opcode == verbs.WRRDMAWriteWithImm {
		return nil
	}
	t.did(bytesChecked, s.n)
	return different("what was received", slot(t.y, receive, s.i)[:s.n], slot(t.x, source, s.i)[:s.n])
}

// useWindow binds y's window, writes through it and invalidates it, from either side.
func (t *pair) useWindow(ctx context.Context) error {
	key := verbs.IncRKey(t.window.RKey())
	err := t.qy.PostSend(verbs.SendWR{Opcode: verbs.WRBindMW, SendFlags: verbs.SendSignaled, BindMW: &verbs.BindMW{MW: t.window, RKey: key,
		MWBindInfo: verbs.MWBindInfo{MR: t.y.mr, Addr: t.y.mr.Addr() + target, Length: slotSize, Access: verbs.AccessRemoteWrite}}})
	if err != nil {
		return err
	}
	if _, err := t.y.collect(ctx, 1); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	n := length(t.random, slotSize)
	from := slot(t.x, source, 0)[:n]
	fill(t.random, from)
	write := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{t.x.mr.SGE(source, n)},
		RemoteAddr: t.y.mr.Addr() + target, RKey: key}
	remotely := t.random.IntN(2) == 0
	invalidate, by := verbs.SendWR{Opcode: verbs.WRLocalInv, SendFlags: verbs.SendSignaled, InvalidateRKey: key}, t.qy
	if remotely {
		invalidate.Opcode, by = verbs.WRSendWithInv, t.qx
		if err := t.recv(verbs.RecvWR{}); err != nil {
			return err
		}
	}
	if err := t.qx.PostSend(write); err != nil {
		return err
	}
	if _, err := t.x.collect(ctx, 1); err != nil {
		return fmt.Errorf("write through a window: %w", err)
	}
	if err := by.PostSend(invalidate); err != nil {
		return err
	}
	wc, err := t.y.collect(ctx, 1) // of the receive, or of the local work request
	if err != nil {
		return fmt.Errorf("%v: %w", invalidate.Opcode, err)
	}
	if remotely {
		if _, err := t.x.collect(ctx, 1); err != nil {
			return fmt.Errorf("%v: %w", invalidate.Opcode, err)
		}
		if wc[0].WCFlags&verbs.WCWithInv == 0 || wc[0].InvalidatedRKey != key {
			return fmt.Errorf("the receive of a SEND that invalidates %#x completed with %+v", key, wc[0])
		}
	}
	if !bytes.Equal(slot(t.y, target, 0)[:n], from) {
		return errors.New("what was written through a window differs")
	}
	t.did(bytesChecked, n)
	for _, op := range []verbs.WROpcode{verbs.WRBindMW, invalidate.Opcode} {
		t.did(op.String(), 1)
	}
	return nil
}
