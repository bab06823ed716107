package transport

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// connectFlush connects a pair in which b has a region that grants FLUSH, and access flags for it.
func connectFlush(t *testing.T) (a, b *side, r *mrtable.Region) {
	a, b = connect(t, defaults)
	r, err := b.table.Register(b.qp.PD(), mrtable.HeapMemory(make([]byte, 4096)), windowRegionBase, 4096,
		ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessFlushGlobal)
	must(t, err)
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{Access: ib.AccessRemoteWrite | ib.AccessFlushGlobal}, ib.QPMaskAccess))
	return a, b, r
}

func fethOf(placement, selectivity uint8) func(*RxPacket) {
	return func(p *RxPacket) { p.FETH = packet.FETH{Placement: placement, Selectivity: selectivity} }
}

func TestResponderRepliesToFlush(t *testing.T) {
	const op = packet.Flush
	for _, c := range []struct {
		name  string
		req   req
		want  string
		event ib.EventType
	}{
		{"of a range", on(op, 0, 0, fethOf(1, 0)), "READ_RESPONSE_ONLY+0/ack/1", 0},
		{"of the whole region, ignoring the range", on(op, 0, 0, fethOf(1, 1), reth(0, 1<<31)), "READ_RESPONSE_ONLY+0/ack/1", 0},
		{"of no bytes", on(op, 0, 0, fethOf(1, 0), reth(windowRegionBase, 0)), "READ_RESPONSE_ONLY+0/ack/1", 0},
		{"of no bytes with a wrong key", on(op, 0, 0, fethOf(1, 0), reth(windowRegionBase, 0), badKey), "ACKNOWLEDGE+0/62/0", ib.EventQPAccessErr},
		{"of the whole region with a wrong key", on(op, 0, 0, fethOf(1, 1), badKey), "ACKNOWLEDGE+0/62/0", ib.EventQPAccessErr},
		{"past the region", on(op, 0, 0, fethOf(1, 0), reth(windowRegionBase+4090, 8)), "ACKNOWLEDGE+0/62/0", ib.EventQPAccessErr},
		{"without a placement", on(op, 0, 0, fethOf(0, 0)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"for persistence, which the queue pair does not grant", on(op, 0, 0, fethOf(3, 0)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"of a reserved selectivity", on(op, 0, 0, fethOf(1, 2)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"with a payload", on(op, 0, 4, fethOf(1, 0)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
	} {
		_, b, r := connectFlush(t)
		c.req.edit = slices.Insert(c.req.edit, 0, func(p *RxPacket) { p.RETH = packet.RETH{VA: windowRegionBase, RKey: r.RKey(), Length: 100} })
		b.requests(c.req)
		if got := b.emitted(defaults.psn); got != c.want || c.event != 0 && !slices.Contains(b.events, c.event) {
			t.Errorf("%s: %s, events %v", c.name, got, b.events)
		}
	}
}

func TestFlushNeedsAccessOfQueuePairAndRegion(t *testing.T) {
	_, b, _ := connectFlush(t)
	b.requests(on(packet.Flush, 0, 0, fethOf(1, 0))) // a region that does not grant FLUSH
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/62/0" {
		t.Errorf("a region without the right: %s", got)
	}
	_, b, r := connectFlush(t)
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{Access: ib.AccessRemoteWrite | ib.AccessFlushPersistent}, ib.QPMaskAccess))
	b.requests(on(packet.Flush, 0, 0, fethOf(2, 0), func(p *RxPacket) { p.RETH = packet.RETH{VA: windowRegionBase, RKey: r.RKey()} }))
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/62/0" {
		t.Errorf("persistence, which no region grants: %s", got)
	}
}

func TestResponderRepliesToAtomicWrite(t *testing.T) {
	const op = packet.AtomicWrite
	for _, c := range []struct {
		name  string
		req   req
		want  string
		event ib.EventType
	}{
		{"aligned", on(op, 0, 8, reth(sideBase+8, 8)), "READ_RESPONSE_ONLY+0/ack/1", 0},
		{"not aligned", on(op, 0, 8, reth(sideBase+4, 8)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"of seven bytes", on(op, 0, 7, reth(sideBase, 7)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"of sixteen bytes", on(op, 0, 16, reth(sideBase, 16)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"of eight bytes, and a RETH that says four", on(op, 0, 8, reth(sideBase, 4)), "ACKNOWLEDGE+0/61/0", ib.EventQPReqErr},
		{"with a wrong key", on(op, 0, 8, reth(sideBase, 8), badKey), "ACKNOWLEDGE+0/62/0", ib.EventQPAccessErr},
		{"past the region", on(op, 0, 8, reth(sideBase+1<<18, 8)), "ACKNOWLEDGE+0/62/0", ib.EventQPAccessErr},
	} {
		_, b := connect(t, defaults)
		b.requests(c.req)
		if got := b.emitted(defaults.psn); got != c.want || c.event != 0 && !slices.Contains(b.events, c.event) {
			t.Errorf("%s: %s, events %v", c.name, got, b.events)
		}
	}
	_, b := connect(t, defaults)
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{Access: ib.AccessRemoteAtomic}, ib.QPMaskAccess))
	b.requests(on(op, 0, 8))
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/61/0" {
		t.Errorf("without RemoteWrite: %s", got)
	}
}

// TestZeroBasedWindowChecksAlignmentInMemory binds a zero-based window at an unaligned address.
func TestZeroBasedWindowChecksAlignmentInMemory(t *testing.T) {
	for _, op := range []uint8{packet.AtomicWrite, packet.FetchAdd} {
		_, b := connect(t, defaults)
		r, err := b.table.Register(b.qp.PD(), mrtable.HeapMemory(make([]byte, 64)), windowRegionBase, 64, ib.AccessLocalWrite|ib.AccessMWBind)
		must(t, err)
		w, err := b.table.AllocWindow(b.qp.PD(), mrtable.Type1)
		must(t, err)
		must(t, b.table.Bind(mrtable.Binding{PD: b.qp.PD(), RKey: w.RKey(), LKey: r.LKey(), Addr: windowRegionBase + 4, Length: 32,
			Access: ib.AccessRemoteWrite | ib.AccessRemoteAtomic | ib.AccessZeroBased}))
		n := 0
		if op == packet.AtomicWrite {
			n = 8
		}
		b.requests(on(op, 0, n, func(p *RxPacket) {
			p.RETH, p.Atomic.VA, p.Atomic.RKey = packet.RETH{RKey: w.RKey(), Length: 8}, 0, w.RKey()
		}))
		if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/61/0" {
			t.Errorf("%v: emitted %s", packet.Opcode(op), got)
		}
	}
}

func TestDuplicateAtomicWriteIsAnsweredButNotExecuted(t *testing.T) {
	_, b := connect(t, defaults)
	write := func(v byte) req {
		return on(packet.AtomicWrite, 0, 8, reth(sideBase, 8), func(p *RxPacket) {
			p.Payload = [][]byte{{v, v, v}, {v, v, v, v, v}} // in pieces, as a link may deliver it
		})
	}
	b.requests(write(1))
	if binary.LittleEndian.Uint64(b.mem) != 0x0101010101010101 {
		t.Fatalf("memory holds %x", b.mem[:8])
	}
	b.mem[0] = 9 // the program on b writes too
	b.requests(write(1), on(packet.Flush, 0, 0, fethOf(1, 0)))
	if got := b.emitted(defaults.psn); got != "READ_RESPONSE_ONLY+0/ack/1 READ_RESPONSE_ONLY+0/ack/1" || b.mem[0] != 9 {
		t.Errorf("%s, memory holds %x", got, b.mem[:8])
	}
	if b.count.Drops[DropDuplicateRequest] != 1 {
		t.Error("a FLUSH with that PSN was taken for a duplicate")
	}
}

func TestFlushAndAtomicWriteUseResponderResources(t *testing.T) {
	_, b, r := connectFlush(t) // max_dest_rd_atomic 4
	b.room = 0
	for i := range 3 {
		b.requests(on(packet.AtomicWrite, 2*i, 8), on(packet.Flush, 2*i+1, 0, fethOf(1, 1), func(p *RxPacket) { p.RETH.RKey = r.RKey() }))
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	want := "READ_RESPONSE_ONLY+0/ack/1 READ_RESPONSE_ONLY+1/ack/2 READ_RESPONSE_ONLY+2/ack/3 READ_RESPONSE_ONLY+3/ack/4 ACKNOWLEDGE+4/61/4"
	if got := b.emitted(defaults.psn); got != want {
		t.Errorf("replies %s\nwant    %s", got, want)
	}
}

// TestExtendedOperationsEndToEnd checks, with loss, duplication and go-back-N, that a counter
// written by ATOMIC WRITEs never decreases.
func TestExtendedOperationsEndToEnd(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		a, b, r := connectFlush(t)
		for i := range 20 {
			v := uint64(i + 1)
			binary.LittleEndian.PutUint64(a.mem[8*i:], v)
			w := SendWR{ID: v, Opcode: ib.WRAtomicWrite, Flags: ib.SendSignaled, SGEs: a.sge(8*i, 8), RemoteAddr: windowRegionBase, RKey: r.RKey()}
			if i%3 == 0 {
				w.Flags, w.SGEs, w.Inline = w.Flags|ib.SendInline, nil, a.mem[8*i:][:8]
			}
			a.post(w)
			a.post(SendWR{ID: v, Opcode: ib.WRFlush, Flags: ib.SendSignaled, RemoteAddr: windowRegionBase, RKey: r.RKey(), Flush: Flush{Length: 8, Placement: 1}})
		}
		before := uint64(0)
		run(t, a, b, func(*side, *packet.Tx) int {
			v, err := b.env.Mem.Read(r, windowRegionBase, 8)
			must(t, err)
			if now := binary.LittleEndian.Uint64(v); now < before {
				t.Fatalf("seed %d: %d after %d", seed, now, before)
			} else {
				before = now
			}
			return []int{0, 1, 1, 1, 1, 2}[rnd.IntN(6)]
		})
		if len(a.done) != 40 || before != 20 {
			t.Fatalf("seed %d: %d completions, %d is written", seed, len(a.done), before)
		}
		for i, c := range a.done {
			if c.Status != ib.WCSuccess || c.WRID != uint64(i/2+1) || c.Opcode != []ib.WCOpcode{ib.WCAtomicWrite, ib.WCFlush}[i%2] {
				t.Fatalf("seed %d: completion %d is %+v", seed, i, c)
			}
		}
		if b.count.RxAtomicWrites != 20 || b.count.RxFlushRequests != 20 {
			t.Fatalf("seed %d: %d and %d were carried out", seed, b.count.RxAtomicWrites, b.count.RxFlushRequests)
		}
	}
}

func TestOnlyEmptyReadResponseCompletesFlushAndAtomicWrite(t *testing.T) {
	for _, c := range []struct {
		name string
		op   uint8
		n    int
		want string
	}{
		{"READ response", packet.ReadResponseOnly, 0, "1:0"},
		{"READ response with bytes", packet.ReadResponseOnly, 8, "1:7"},
		{"first of several", packet.ReadResponseFirst, 1024, "1:7"},
		{"atomic acknowledgement", packet.AtomicAcknowledge, 0, "1:7"},
		{"ACK implies that the response was lost", packet.Acknowledge, 0, ""},
	} {
		for _, op := range []ib.WROpcode{ib.WRFlush, ib.WRAtomicWrite} {
			a, b := connect(t, defaults)
			w := SendWR{ID: 1, Opcode: op, Flags: ib.SendSignaled, RemoteAddr: sideBase, RKey: b.region.RKey(), Flush: Flush{Placement: 1}}
			if op == ib.WRAtomicWrite {
				w.SGEs = a.sge(0, 8)
			}
			a.post(w)
			a.qp.Transmit(&a.env)
			a.reply(c.op, defaults.psn, unlimited, 1, c.n)
			if got := statuses(a.done); got != c.want {
				t.Errorf("%s to %d: %q, want %q", c.name, op, got, c.want)
			}
		}
	}
}
