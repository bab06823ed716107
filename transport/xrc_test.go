package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// An xrcTarget is the target side of an XRC connection: an XRC domain with two shared receive
// queues, each with its own protection domain and region.
type xrcTarget struct {
	*side
	srqs map[uint32]*xrcQueue
}

type xrcQueue struct {
	recvQueue
	pd     *mrtable.PD
	region *mrtable.Region
	mem    []byte
}

func (x *xrcTarget) Queue(number uint32) (RecvQueue, *mrtable.PD) {
	if q := x.srqs[number]; q != nil {
		return q, q.pd
	}
	return nil, nil
}

func (q *xrcQueue) sge(off, n int) []SGE {
	return []SGE{{Addr: sideBase + uint64(off), Length: uint32(n), LKey: q.region.LKey()}}
}

func (q *xrcQueue) recv(id uint64, off, n int) {
	q.wrs = append(q.wrs, RecvWR{ID: id, SGEs: q.sge(off, n)})
}

// connectXRC returns an initiator, which sends from defaults.psn with path MTU 1024, and a target
// with the shared receive queues 5 and 6.
func connectXRC(t *testing.T) (a *side, b *xrcTarget) {
	a = newSide(t, 17, 1<<18)
	var err error
	a.qp, err = New(Config{QPN: 17, Service: packet.XRC, Role: Initiator, PD: a.qp.PD(), SendDepth: 64, MaxSendSGE: 4, MaxInline: 64, Counters: &a.count})
	must(t, err)
	b = &xrcTarget{side: newSide(t, 18, 1<<18), srqs: map[uint32]*xrcQueue{}}
	b.qp, err = New(Config{QPN: 18, Service: packet.XRC, Role: Target, Domain: b, Counters: &b.count})
	must(t, err)
	for n := uint32(5); n <= 6; n++ {
		q := &xrcQueue{recvQueue: recvQueue{shared: true}, pd: b.table.AllocPD(), mem: make([]byte, 1<<16)}
		q.region, err = b.table.Register(q.pd, mrtable.HeapMemory(q.mem), sideBase, 1<<16,
			ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic)
		must(t, err)
		b.srqs[n] = q
	}
	at := ib.QPAttr{State: ib.QPSInit, PKey: packet.DefaultPKey, Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic}
	for _, s := range []*side{a, b.side} {
		must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskAccess))
	}
	at = ib.QPAttr{State: ib.QPSRTR, PathMTU: 1024, DestQPN: 18, RQPSN: 100}
	must(t, a.qp.Modify(&a.env, &at, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|ib.QPMaskRQPSN))
	at = ib.QPAttr{State: ib.QPSRTS, SQPSN: defaults.psn, Timeout: 10, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 4}
	must(t, a.qp.Modify(&a.env, &at, ib.QPMaskState|ib.QPMaskTimeout|ib.QPMaskRetryCount|ib.QPMaskRNRRetry|ib.QPMaskSQPSN|ib.QPMaskMaxRDAtomic))
	at = ib.QPAttr{State: ib.QPSRTR, PathMTU: 1024, DestQPN: 17, RQPSN: defaults.psn, MaxDestRDAtomic: 4, MinRNRTimer: 12}
	must(t, b.qp.Modify(&b.env, &at, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|ib.QPMaskRQPSN|ib.QPMaskMaxDestRDAtomic|ib.QPMaskMinRNRTimer))
	at = ib.QPAttr{State: ib.QPSRTS, SQPSN: 1, Timeout: 10}
	must(t, b.qp.Modify(&b.env, &at, ib.QPMaskState|ib.QPMaskTimeout|ib.QPMaskSQPSN))
	return a, b
}

func TestXRCEndToEnd(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		a, b := connectXRC(t)
		fill(a.mem[:8000], seed)
		adds := map[uint32]uint64{}
		sent := map[uint32][]int{}
		for i := range 24 {
			n := uint32(5 + rnd.IntN(2))
			q, size := b.srqs[n], rnd.IntN(4000)
			w := SendWR{ID: uint64(i), Flags: ib.SendSignaled, RemoteSRQ: n, RKey: q.region.RKey(), SGEs: a.sge(i, size)}
			switch rnd.IntN(4) {
			case 0:
				w.Opcode = ib.WRSend
				q.recv(uint64(i), 0, 4000)
				sent[n] = append(sent[n], size)
			case 1:
				w.Opcode, w.RemoteAddr = ib.WRRDMAWrite, sideBase+8000
			case 2:
				w.Opcode, w.RemoteAddr, w.SGEs = ib.WRRDMARead, sideBase+16000, a.sge(100000+4000*i, size)
			case 3:
				w.Opcode, w.RemoteAddr, w.SGEs, w.CompareAdd = ib.WRAtomicFetchAndAdd, sideBase+32000, a.sge(99000, 8), 1
				adds[n]++
			}
			a.post(w)
		}
		run(t, a, b.side, func(*side, *packet.Tx) int { return []int{0, 1, 1, 1, 1, 1, 1, 2}[rnd.IntN(8)] })
		if len(a.done) != 24 {
			t.Fatalf("seed %d: %d completions", seed, len(a.done))
		}
		for i, c := range a.done {
			if c.Status != ib.WCSuccess || c.WRID != uint64(i) {
				t.Fatalf("seed %d: %+v", seed, c)
			}
		}
		got := map[uint32][]int{}
		for _, c := range b.done {
			for n, q := range b.srqs {
				if c.Queue == RecvQueue(q) {
					got[n] = append(got[n], int(c.ByteLen))
				}
			}
		}
		for n, q := range b.srqs {
			if leUint64(q.mem[32000:]) != adds[n] || !slices.Equal(got[n], sent[n]) {
				t.Fatalf("seed %d: queue %d got %v of %v, %d atomics of %d", seed, n, got[n], sent[n], leUint64(q.mem[32000:]), adds[n])
			}
		}
		if b.count.Drops[DropService] != 0 || a.count.Drops[DropService] != 0 {
			t.Fatal("packets of another service")
		}
	}
}

func toSRQ(srq uint32) func(*RxPacket) { return func(p *RxPacket) { p.XRCSRQ = srq } }

// TestXRCTarget posts one receive of 2000 bytes to each queue, with the queue's number as ID.
func TestXRCTarget(t *testing.T) {
	const x = uint8(packet.XRC)
	with := func(b *xrcTarget, n uint32) func(*RxPacket) {
		return func(p *RxPacket) {
			p.XRCSRQ = n
			p.RETH.RKey, p.Atomic.RKey = b.srqs[n].region.RKey(), b.srqs[n].region.RKey()
		}
	}
	for _, c := range []struct {
		name  string
		reqs  func(b *xrcTarget) []req
		want  string
		recv  string
		state ib.QPState
		event ib.EventType
	}{
		{"each SEND uses the SRQ that it names", func(b *xrcTarget) []req {
			return []req{on(x|packet.SendOnly, 0, 1, toSRQ(6)), on(x|packet.SendOnly, 1, 1, toSRQ(5))}
		}, "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2", "6:0 5:0", ib.QPSRTS, 0},
		{"an empty SRQ: RNR NAK, although another has receives", func(b *xrcTarget) []req {
			return []req{on(x|packet.SendOnly, 0, 1, toSRQ(6)), on(x|packet.SendOnly, 1, 1, toSRQ(6)), on(x|packet.SendOnly, 1, 1, toSRQ(5))}
		}, "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/2c/1 ACKNOWLEDGE+1/ack/2", "6:0 5:0", ib.QPSRTS, 0},
		{"an SRQ that does not exist", func(b *xrcTarget) []req {
			return []req{on(x|packet.SendOnly, 0, 1, toSRQ(7))}
		}, "ACKNOWLEDGE+0/61/0", "", ib.QPSErr, ib.EventQPReqErr},
		{"WRITE to an SRQ that does not exist", func(b *xrcTarget) []req {
			return []req{on(x|packet.WriteOnly, 0, 1, with(b, 5), toSRQ(7))}
		}, "ACKNOWLEDGE+0/61/0", "", ib.QPSErr, ib.EventQPReqErr},
		{"a message names one SRQ", func(b *xrcTarget) []req {
			return []req{on(x|packet.SendFirst, 0, 1024, toSRQ(5), noAckReq), on(x|packet.SendLast, 1, 1, toSRQ(6))}
		}, "ACKNOWLEDGE+1/61/0", "5:9", ib.QPSErr, ib.EventQPReqErr},
		{"memory access uses the SRQ's protection domain", func(b *xrcTarget) []req {
			return []req{on(x|packet.WriteOnly, 0, 8, with(b, 6)), on(x|packet.ReadRequest, 1, 0, with(b, 5), reth(sideBase, 8)),
				on(x|packet.FetchAdd, 2, 0, with(b, 6)), on(x|packet.WriteOnly, 3, 8, with(b, 6), toSRQ(5))}
		}, "ACKNOWLEDGE+0/ack/1 READ_RESPONSE_ONLY+1/ack/2 ATOMIC_ACKNOWLEDGE+2/ack/3 ACKNOWLEDGE+3/62/3", "", ib.QPSErr, ib.EventQPAccessErr},
		{"a duplicate READ inside a message to another SRQ", func(b *xrcTarget) []req {
			return []req{on(x|packet.ReadRequest, 0, 0, with(b, 5), reth(sideBase, 8)), on(x|packet.SendFirst, 1, 1024, toSRQ(6), noAckReq),
				on(x|packet.ReadRequest, 0, 0, with(b, 5), reth(sideBase, 8)), on(x|packet.SendLast, 2, 1, toSRQ(6))}
		}, "READ_RESPONSE_ONLY+0/ack/1 READ_RESPONSE_ONLY+0/ack/1 ACKNOWLEDGE+2/ack/2", "6:0", ib.QPSRTS, 0},
		{"SEND with invalidate of a key that is no window", func(b *xrcTarget) []req {
			return []req{on(x|packet.SendOnlyInv, 0, 1, toSRQ(5))}
		}, "", "5:9", ib.QPSErr, ib.EventQPAccessErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connectXRC(t)
			b.srqs[5].recv(5, 0, 2000)
			b.srqs[6].recv(6, 0, 2000)
			b.requests(c.reqs(b)...)
			if got := b.emitted(defaults.psn); got != c.want {
				t.Errorf("replies %s\nwant    %s", got, c.want)
			}
			if got := statuses(b.done); got != c.recv || b.qp.State() != c.state {
				t.Errorf("completions %s in %v, want %s in %v", got, b.qp.State(), c.recv, c.state)
			}
			if c.event != 0 && !slices.Contains(b.events, c.event) {
				t.Errorf("events %v", b.events)
			}
			for op, n := range b.count.TxOpcode {
				if n > 0 && packet.Opcode(op).Service() != packet.XRC {
					t.Errorf("it sent %v", packet.Opcode(op))
				}
			}
			for _, r := range b.done {
				if r.Queue == nil || !r.Recv {
					t.Errorf("%+v belongs to no queue", r)
				}
			}
		})
	}
}

func TestFailedXRCTargetFlushesTakenReceive(t *testing.T) {
	_, b := connectXRC(t)
	b.srqs[5].recv(5, 0, 2000)
	b.srqs[5].recv(55, 0, 2000)
	b.requests(on(uint8(packet.XRC)|packet.SendFirst, 0, 1024, toSRQ(5), noAckReq))
	if b.qp.Receiving() != RecvQueue(b.srqs[5]) {
		t.Fatal("no receive was taken")
	}
	b.qp.Fail(&b.env, ib.EventQPFatal)
	if statuses(b.done) != "5:5" || len(b.srqs[5].wrs) != 1 || b.qp.Receiving() != nil {
		t.Errorf("%s, %d left", statuses(b.done), len(b.srqs[5].wrs))
	}
}

func TestXRCRolesDropEachOthersPackets(t *testing.T) {
	a, b := connectXRC(t)
	a.request(uint8(packet.XRC)|packet.SendOnly, 100, 1)
	b.reply(uint8(packet.XRC)|packet.Acknowledge, 1, unlimited, 1, 0)
	b.request(packet.SendOnly, defaults.psn, 1) // RC
	if a.count.Drops[DropService] != 1 || b.count.Drops[DropService] != 2 || len(a.out)+len(b.out) > 0 {
		t.Errorf("initiator %s, target %s", drops(&a.count), drops(&b.count))
	}
	if err := b.qp.PostSend(&SendWR{Opcode: ib.WRSend}); err != ErrFull {
		t.Errorf("PostSend on a target: %v", err)
	}
	a.post(SendWR{ID: 1, Opcode: ib.WRFlush, Flush: Flush{Placement: 1}})
	a.qp.Transmit(&a.env)
	if got := statuses(a.done); got != "1:2" {
		t.Errorf("FLUSH over XRC: %s", got)
	}
}

func TestXRCSendWithInvalidate(t *testing.T) {
	a, b := connectXRC(t)
	q := b.srqs[6]
	q.recv(6, 0, 3000)
	r, err := b.table.Register(q.pd, mrtable.HeapMemory(make([]byte, 64)), 0, 64, ib.AccessLocalWrite|ib.AccessMWBind)
	must(t, err)
	w, err := b.table.AllocWindow(q.pd, mrtable.Type2B)
	must(t, err)
	must(t, b.table.Bind(mrtable.Binding{PD: q.pd, QPN: 18, RKey: w.RKey(), LKey: r.LKey(), Length: 64, Access: ib.AccessRemoteWrite}))
	fill(a.mem[:2500], 3)
	a.post(SendWR{ID: 1, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, RemoteSRQ: 6, Imm: w.RKey(), SGEs: a.sge(0, 2500)})
	run(t, a, b.side, deliverAll)
	if statuses(a.done) != "1:0" || statuses(b.done) != "6:0" || w.Bound() != nil || !bytes.Equal(q.mem[:2500], a.mem[:2500]) {
		t.Errorf("%s, %s, bound %v", statuses(a.done), statuses(b.done), w.Bound())
	}
}

func TestXRCAttributesDependOnRole(t *testing.T) {
	for _, c := range []struct {
		role     Role
		from, to ib.QPState
		mask     ib.QPAttrMask
		ok       bool
	}{
		{Initiator, ib.QPSInit, ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, true},
		{Initiator, ib.QPSInit, ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMinRNRTimer, false},
		{Target, ib.QPSInit, ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, false},
		{Target, ib.QPSRTR, ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN, true},
		{Target, ib.QPSRTR, ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN | ib.QPMaskRetryCount, false},
		{Initiator, ib.QPSRTR, ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN, false},
		{Initiator, ib.QPSSQD, ib.QPSSQD, ib.QPMaskMaxRDAtomic, true},
		{Target, ib.QPSSQD, ib.QPSSQD, ib.QPMaskMaxRDAtomic, false},
		{Target, ib.QPSRTS, ib.QPSRTS, ib.QPMaskMinRNRTimer, true},
	} {
		conf := Config{Service: packet.XRC, Role: c.role}
		if err := conf.checkTransition(c.from, c.to, c.mask); (err == nil) != c.ok {
			t.Errorf("role %d, %v to %v with %#x: %v", c.role, c.from, c.to, uint32(c.mask), err)
		}
	}
}
