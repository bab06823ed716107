package transport

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A side is one end of a connected pair: its queue pair, memory and receive queue, and the packets,
// completions and events of the queue pair.
type side struct {
	t       *testing.T
	qp      *QP
	env     Env
	table   *mrtable.Table
	region  *mrtable.Region
	mem     []byte
	rq      recvQueue
	out     []*packet.Tx // emitted, not yet delivered
	room    int          // transmit slots left in this step; -1: no limit
	settled *packet.Tx   // the last run whose slots runSink has taken
	done    []Completion
	events  []ib.EventType
	count   Counters
}

type recvQueue struct {
	wrs    []RecvWR
	shared bool
}

func (r *recvQueue) Next(wr *RecvWR) bool {
	if len(r.wrs) == 0 {
		return false
	}
	*wr = r.wrs[0]
	r.wrs = r.wrs[1:]
	return true
}
func (r *recvQueue) Len() int     { return len(r.wrs) }
func (r *recvQueue) Shared() bool { return r.shared }

func (s *side) Packet(*QP) *packet.Tx {
	if s.room == 0 {
		return nil
	}
	s.room--
	tx := new(packet.Tx)
	s.out = append(s.out, tx)
	return tx
}
func (s *side) Discard(*QP, uint32, uint32) {}

func (s *side) Room(*QP) int {
	if s.room < 0 {
		return math.MaxInt
	}
	return s.room
}
func (s *side) Last(*QP) bool                 { return s.room == 1 }
func (s *side) Run(*QP) int                   { return 0 }
func (s *side) Complete(_ *QP, c *Completion) { s.done = append(s.done, *c) }
func (s *side) Event(_ *QP, ev ib.EventType)  { s.events = append(s.events, ev) }

const sideBase = 0x10000

func newSide(t *testing.T, qpn uint32, size int) *side { return newSideOf(t, packet.RC, qpn, size) }

func newSideOf(t *testing.T, service packet.Service, qpn uint32, size int) *side {
	s := &side{t: t, room: -1, mem: make([]byte, size)}
	s.table = mrtable.NewTable(rand.New(rand.NewPCG(uint64(qpn), 2)))
	pd := s.table.AllocPD()
	var err error
	s.region, err = s.table.Register(pd, mrtable.HeapMemory(s.mem), sideBase, uint64(size),
		ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	s.qp, err = New(Config{QPN: qpn, Service: service, PD: pd, SendDepth: 64, MaxSendSGE: 4, MaxInline: 64,
		Recv: &s.rq, PortMTU: 1024, Counters: &s.count})
	if err != nil {
		t.Fatal(err)
	}
	s.env = Env{Now: 1, Mem: mrtable.NewIO(1 << 20), Table: s.table, Sink: s}
	return s
}

type pairOptions struct {
	mtu      int
	psn      uint32
	rdAtomic uint8
	timeout  uint8
	retry    uint8
	rnrRetry uint8
}

var defaults = pairOptions{mtu: 1024, psn: 0xfffff0, rdAtomic: 4, timeout: 10, retry: 7, rnrRetry: 7}

// connect returns two connected queue pairs in RTS. a sends from o.psn, b from 100.
func connect(t *testing.T, o pairOptions) (a, b *side) {
	a, b = newSide(t, 17, 1<<18), newSide(t, 18, 1<<18)
	toRTS(t, a, o, 18, o.psn, 100)
	toRTS(t, b, o, 17, 100, o.psn)
	return a, b
}

// toRTR moves s to RTR, with the expected PSN rq.
func toRTR(t *testing.T, s *side, o pairOptions, peer, rq uint32) {
	at := ib.QPAttr{State: ib.QPSInit, PKey: packet.DefaultPKey, Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic}
	must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskAccess))
	at = ib.QPAttr{State: ib.QPSRTR, PathMTU: o.mtu, DestQPN: peer, RQPSN: rq, MaxDestRDAtomic: o.rdAtomic, MinRNRTimer: 12}
	must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|ib.QPMaskRQPSN|ib.QPMaskMaxDestRDAtomic|ib.QPMaskMinRNRTimer))
}

// toRTS moves s to RTS, with the send PSN sq.
func toRTS(t *testing.T, s *side, o pairOptions, peer, sq, rq uint32) {
	toRTR(t, s, o, peer, rq)
	at := ib.QPAttr{State: ib.QPSRTS, SQPSN: sq, Timeout: o.timeout, RetryCount: o.retry, RNRRetry: o.rnrRetry, MaxRDAtomic: o.rdAtomic}
	must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskTimeout|ib.QPMaskRetryCount|ib.QPMaskRNRRetry|ib.QPMaskSQPSN|ib.QPMaskMaxRDAtomic))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *side) sge(off, n int) []SGE {
	return []SGE{{Addr: sideBase + uint64(off), Length: uint32(n), LKey: s.region.LKey()}}
}

func (s *side) post(wr SendWR) {
	s.t.Helper()
	must(s.t, s.qp.PostSend(&wr))
}

func (s *side) recv(id uint64, off, n int) {
	s.rq.wrs = append(s.rq.wrs, RecvWR{ID: id, SGEs: s.sge(off, n)})
}

// receive passes the bytes of tx to s as a link does.
func (s *side) receive(tx *packet.Tx) {
	var p RxPacket
	n, err := p.Header.Parse(append(tx.Head[:tx.HeadLen:tx.HeadLen], bytes.Join(tx.Payload, nil)...))
	if err != nil {
		s.t.Fatalf("emitted a packet that does not parse: %v", err)
	}
	_ = n
	p.Payload, p.Len = tx.Payload, tx.Len-int(tx.HeadLen)-int(tx.Pad)
	s.qp.Receive(&s.env, &p)
	s.flush()
}

// flush carries out what is queued for memory.
func (s *side) flush() {
	s.env.Mem.Flush()
	s.env.Mem.Results(func(tag any, id, original uint64) { tag.(*Writer).QP.AtomicDone(id, original) })
}

// transmit lets s emit packets, also those that wait for memory reads.
func (s *side) transmit() {
	for s.qp.Transmit(&s.env); s.qp.Waiting() > 0; s.qp.Transmit(&s.env) {
		s.flush()
	}
}

// step lets both sides expire and transmit, and delivers each packet as often as pass says.
func step(a, b *side, now int64, pass func(from *side, tx *packet.Tx) int) (moved bool) {
	for _, s := range []*side{a, b} {
		s.env.Now = now
		s.env.Mem.Epoch()
		if d := s.qp.NextDeadline(); d != 0 && now >= d {
			s.qp.Expire(&s.env)
		}
		s.transmit()
	}
	for _, w := range []struct{ from, to *side }{{a, b}, {b, a}} {
		out := w.from.out
		w.from.out = nil
		for _, tx := range out {
			moved = true
			for range pass(w.from, tx) {
				w.to.receive(tx)
			}
		}
	}
	return moved
}

func deliverAll(*side, *packet.Tx) int { return 1 }

// run steps until no packet is sent and no timer runs.
func run(t *testing.T, a, b *side, pass func(*side, *packet.Tx) int) {
	t.Helper()
	now := max(a.env.Now, b.env.Now)
	for range 1000000 {
		now += 1000
		if step(a, b, now, pass) {
			continue
		}
		next := int64(0)
		for _, s := range []*side{a, b} {
			if d := s.qp.NextDeadline(); d != 0 && (next == 0 || d < next) {
				next = d
			}
		}
		if next == 0 {
			return
		}
		now = max(now, next)
	}
	t.Fatal("the pair does not become idle")
}

func fill(p []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
}

func TestEveryOperationAtEveryPathMTU(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, n := range []int{0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 3*mtu + 2, 40000} {
			o := defaults
			o.mtu = mtu
			a, b := connect(t, o)
			fill(a.mem[:n], uint64(n))
			fill(b.mem[n:2*n], uint64(n)+1)
			b.recv(1, 100000, n)
			b.recv(2, 0, 0)
			a.post(SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, n)})
			a.post(SendWR{ID: 2, Opcode: ib.WRRDMAWriteWithImm, Flags: ib.SendSignaled, Imm: 0x11223344, SGEs: a.sge(0, n), RemoteAddr: sideBase + 150000, RKey: b.region.RKey()})
			a.post(SendWR{ID: 3, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(100000, n), RemoteAddr: sideBase + uint64(n), RKey: b.region.RKey()})
			run(t, a, b, deliverAll)
			if len(a.done) != 3 || len(b.done) != 2 {
				t.Fatalf("mtu %d, %d bytes: %d and %d completions", mtu, n, len(a.done), len(b.done))
			}
			for _, c := range append(a.done, b.done...) {
				if c.Status != ib.WCSuccess {
					t.Fatalf("mtu %d, %d bytes: %+v", mtu, n, c)
				}
			}
			if c := b.done[0]; c.ByteLen != uint32(n) {
				t.Fatalf("SEND of %d bytes completed with %d", n, c.ByteLen)
			}
			if c := b.done[1]; c.ByteLen != uint32(n) || c.Imm != 0x11223344 || c.Opcode != ib.WCRecvRDMAWithImm {
				t.Fatalf("WRITE with immediate completed as %+v", c)
			}
			if !bytes.Equal(b.mem[100000:100000+n], a.mem[:n]) || !bytes.Equal(b.mem[150000:150000+n], a.mem[:n]) ||
				!bytes.Equal(a.mem[100000:100000+n], b.mem[n:2*n]) {
				t.Fatalf("mtu %d: data of %d bytes differ", mtu, n)
			}
		}
	}
}

func TestTransportRecoversFromLossDuplicationAndReorder(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := defaults
		o.mtu = []int{256, 1024, 4096}[seed%3]
		a, b := connect(t, o)
		if seed%2 == 1 {
			a.useCopiedMemory(1 << 20)
			b.useCopiedMemory(1 << 20)
		}
		fill(a.mem[:60000], seed)
		fill(b.mem[:60000], seed+1)
		var counter uint64
		for i := range 20 {
			n := r.IntN(6000)
			b.recv(uint64(i), 100000+i*6000, 6000)
			switch r.IntN(4) {
			case 0:
				a.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(i*1000, n)})
			case 1:
				a.post(SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(i*1000, n), RemoteAddr: sideBase + 60000, RKey: b.region.RKey()})
			case 2:
				a.post(SendWR{ID: uint64(i), Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(100000+i*6000, n), RemoteAddr: sideBase + uint64(i)*1000, RKey: b.region.RKey()})
			case 3:
				counter++
				a.post(SendWR{ID: uint64(i), Opcode: ib.WRAtomicFetchAndAdd, Flags: ib.SendSignaled, SGEs: a.sge(250000, 8), CompareAdd: 1, RemoteAddr: sideBase + 250000, RKey: b.region.RKey()})
			}
		}
		run(t, a, b, func(*side, *packet.Tx) int {
			switch r.IntN(20) {
			case 0:
				return 0
			case 1:
				return 2
			}
			return 1
		})
		if len(a.done) != 20 {
			t.Fatalf("seed %d: %d of 20 completions", seed, len(a.done))
		}
		for i, c := range a.done {
			if c.WRID != uint64(i) || c.Status != ib.WCSuccess {
				t.Fatalf("seed %d: completion %d is %+v", seed, i, c)
			}
		}
		if got := leUint64(b.mem[250000:]); got != counter {
			t.Fatalf("seed %d: %d atomics executed %d times", seed, counter, got)
		}
	}
}

func leUint64(b []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}
