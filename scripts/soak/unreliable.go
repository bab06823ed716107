package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"softroce/verbs"
)

// A message of an unreliable service begins with its number and its length, from which the rest
// follows. So what arrives can be judged, whatever was lost before it.
const messageHeader = 12

// compose writes message number seq to b.
func compose(seq uint64, b []byte) {
	binary.LittleEndian.PutUint64(b, seq)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)))
	fill(rand.New(rand.NewPCG(seq, 4)), b[messageHeader:])
}

// parse returns the number of a message, and checks every byte.
func parse(b []byte) (uint64, error) {
	if len(b) < messageHeader {
		return 0, fmt.Errorf("a message of %d bytes arrived", len(b))
	}
	seq, n := binary.LittleEndian.Uint64(b), int(binary.LittleEndian.Uint32(b[8:]))
	if n != len(b) {
		return 0, fmt.Errorf("message %#x of %d bytes arrived with %d", seq, n, len(b))
	}
	want := make([]byte, n)
	compose(seq, want)
	return seq, different(fmt.Sprintf("message %#x", seq), b, want)
}

// Received messages have smaller slots than those of a connected pair, and more of them: one for
// each message of a round, and as many for the last one, which may be lost several times.
const (
	recvSlots    = 2 * slots
	recvSlotSize = slots * slotSize / recvSlots
)

// lossTime is after how long the last message of a round counts as lost.
const lossTime = time.Second

// A stream is a pair of queue pairs of an unreliable service.
type stream struct {
	*process
	random *rand.Rand
	kind   string
	x, y   *endpoint
	qx, qy *verbs.QP
	seq    uint64 // of the last message
	last   uint64 // that arrived
	grh    int    // bytes before a received message
	wr     verbs.SendWR
	most   int // bytes of a message
}

// newStream creates the queue pairs and posts the receives.
func newStream(ctx context.Context, p *process, r *rand.Rand, kind string, typ verbs.QPType, a, b *verbs.Context) (s *stream, err error) {
	s = &stream{process: p, random: r, kind: kind, seq: r.Uint64() >> 1, most: recvSlotSize}
	s.last = s.seq
	if s.x, err = newEndpoint(ctx, a, memory, p.mapped || r.IntN(2) == 0); err != nil {
		return nil, err
	}
	if s.y, err = newEndpoint(ctx, b, memory, p.mapped || r.IntN(2) == 0); err != nil {
		return nil, err
	}
	init := verbs.QPInitAttr{QPType: typ, SendCQ: s.x.cq, RecvCQ: s.x.cq, Cap: capacity}
	if s.qx, err = s.x.pd.CreateQP(ctx, init); err != nil {
		return nil, err
	}
	init.SendCQ, init.RecvCQ = s.y.cq, s.y.cq
	s.qy, err = s.y.pd.CreateQP(ctx, init)
	return s, err
}

func (s *stream) post(i uint64) error {
	return s.qy.PostRecv(verbs.RecvWR{WRID: i, SGList: []verbs.SGE{s.y.mr.SGE(receive+int(i)*recvSlotSize, recvSlotSize)}})
}

// run carries out rounds.
func (s *stream) run() error {
	for i := range uint64(recvSlots) {
		if err := s.post(i); err != nil {
			return err
		}
	}
	for i := 0; i < rounds && !s.stopped(); i++ {
		if err := s.round(); err != nil {
			return err
		}
	}
	s.did("pairs connected", 1)
	return nil
}

// round sends messages, and judges those that arrive. Messages arrive in order, so that all are
// there when the last one is. It is repeated, under another number, until it arrives.
func (s *stream) round() error {
	var written []write
	for i := range s.random.IntN(slots) {
		wr, sent := s.message(i)
		if s.kind == "UC " && s.random.IntN(2) == 0 {
			wr.Opcode, wr.Imm = []verbs.WROpcode{verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm}[s.random.IntN(2)], uint32(i)
			wr.RemoteAddr, wr.RKey = s.y.mr.Addr()+uint64(target+i*slotSize), s.y.mr.RKey()
			there := s.y.mem[target+i*slotSize:][:slotSize]
			written = append(written, write{there, slices.Clone(there), sent})
		}
		if err := s.send(wr); err != nil {
			return err
		}
	}
	for last := s.seq; s.last <= last; {
		wr, _ := s.message(slots - 1)
		if err := s.send(wr); err != nil {
			return err
		}
		if err := s.receive(last); err != nil {
			return fmt.Errorf("%smessage: %w", s.kind, err)
		}
	}
	for _, w := range written {
		if err := w.judge(); err != nil {
			return err
		}
		s.did(bytesChecked, slotSize)
	}
	return nil
}

// message composes the next message in a slot of the source.
func (s *stream) message(i int) (wr verbs.SendWR, sent []byte) {
	s.seq++
	sent = s.x.mem[source+i*slotSize:][:max(length(s.random, s.most), messageHeader)]
	compose(s.seq, sent)
	wr = s.wr
	wr.Opcode, wr.SendFlags = verbs.WRSend, verbs.SendSignaled
	wr.SGList = []verbs.SGE{s.x.mr.SGE(source+i*slotSize, len(sent))}
	return wr, sent
}

// send sends a message. Its completion says that it has left.
func (s *stream) send(wr verbs.SendWR) error {
	ctx, cancel := timeLimit()
	defer cancel()
	if err := s.qx.PostSend(wr); err != nil {
		return err
	}
	_, err := s.x.collect(ctx, 1)
	s.did(s.kind+wr.Opcode.String(), 1)
	return err
}

// receive judges what arrives until that includes a message after last, or that must be lost.
func (s *stream) receive(last uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), lossTime)
	defer cancel()
	for s.last <= last {
		wc, err := s.y.collect(ctx, 1)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err == nil {
			err = s.judge(&wc[0])
		}
		if err == nil {
			err = s.post(wc[0].WRID)
		}
		if err != nil {
			return err
		}
		s.did(s.kind+"messages arrived", 1)
	}
	return nil
}

// A write is one of UC, of which any packet may be lost.
type write struct{ there, before, sent []byte }

func (w *write) judge() error {
	for i, b := range w.there {
		if b != w.before[i] && (i >= len(w.sent) || b != w.sent[i]) {
			return fmt.Errorf("UC RDMA_WRITE of %d bytes: byte %d is %#02x, before %#02x", len(w.sent), i, b, w.before[i])
		}
	}
	return nil
}

// judge checks a message that arrived. Messages arrive in order, and once.
func (s *stream) judge(wc *verbs.WC) error {
	b := s.y.mem[receive+int(wc.WRID)*recvSlotSize:][:wc.ByteLen]
	if wc.Opcode == verbs.WCRecvRDMAWithImm { // the last packet was not lost, so the whole message is in place
		b = s.y.mem[target+int(wc.Imm)*slotSize:]
		b = b[:min(max(int(binary.LittleEndian.Uint32(b[8:])), messageHeader), slotSize)]
	} else {
		b = b[min(s.grh, len(b)):]
	}
	seq, err := parse(b)
	if err != nil {
		return err
	}
	if seq <= s.last || seq > s.seq {
		return fmt.Errorf("message %#x arrived after %#x, of %#x that were sent", seq, s.last, s.seq)
	}
	s.last = seq
	s.did(bytesChecked, len(b))
	return nil
}

// unreliable is the workload of a UC pair.
func unreliable(p *process, r *rand.Rand, a, b *verbs.Context) error {
	ctx, cancel := timeLimit()
	defer cancel()
	s, err := newStream(ctx, p, r, "UC ", verbs.UC, a, b)
	if err == nil {
		err = connectPair(ctx, r, s.qx, s.qy)
	}
	if err == nil {
		err = s.run()
	}
	if err != nil {
		return fmt.Errorf("UC pair: %w", err)
	}
	return errors.Join(s.x.close(context.Background(), s.qx), s.y.close(context.Background(), s.qy))
}

const qkey = 0x1234

// datagrams is the workload of a UD pair.
func datagrams(p *process, r *rand.Rand, a, b *verbs.Context) error {
	ctx, cancel := timeLimit()
	defer cancel()
	s, err := newStream(ctx, p, r, "UD ", verbs.UD, a, b)
	if err != nil {
		return fmt.Errorf("UD pair: %w", err)
	}
	s.grh, s.most = 40, 4096 // bytes of GRH, and the path MTU
	to, err := s.qy.Info(ctx, verbs.AnyGID)
	err = errors.Join(err, s.qx.ToDatagram(ctx, qkey), s.qy.ToDatagram(ctx, qkey))
	if err != nil {
		return fmt.Errorf("UD pair: %w", err)
	}
	from, err := s.qx.Info(ctx, verbs.AnyGID)
	if err != nil {
		return err
	}
	index, err := gidIndex(ctx, a, from.GID)
	if err != nil {
		return err
	}
	ah, err := s.x.pd.CreateAH(ctx, verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: to.GID, SGIDIndex: index, HopLimit: 64}})
	if err != nil {
		return fmt.Errorf("UD pair: %w", err)
	}
	s.wr = verbs.SendWR{AH: ah, RemoteQPN: s.qy.QPNum(), RemoteQKey: qkey}
	if err := s.run(); err != nil {
		return fmt.Errorf("UD pair: %w", err)
	}
	return errors.Join(s.x.close(context.Background(), s.qx, ah), s.y.close(context.Background(), s.qy))
}

func gidIndex(ctx context.Context, c *verbs.Context, gid verbs.GID) (uint8, error) {
	gids, err := c.GIDs(ctx)
	for _, g := range gids {
		if g.GID == gid {
			return uint8(g.Index), nil
		}
	}
	return 0, errors.Join(err, fmt.Errorf("%s has no GID %v", c.Device(), gid))
}
