package nic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// packetsOnly hides from a NIC that its link carries runs.
type packetsOnly struct{ wire.Link }

func (l packetsOnly) HoldsReferences() bool { return wire.HoldsReferences(l.Link) }

func (l packetsOnly) Counters() *wire.LinkCounters { return l.Link.(wire.Counted).Counters() }

// A damager is packetsOnly and damages some of the packets that are received, the same ones of
// each NIC with the same seed. With single it returns one at a time, so that the NIC cannot join
// any.
type damager struct {
	packetsOnly
	single bool
	seed   uint64 // 0: it damages none
	n      uint64 // packets so far
}

func (l *damager) Receive(now int64, batch []wire.RxFrame) (n int, err error) {
	if l.single {
		batch = batch[:1]
	}
	for n == 0 {
		k, err := l.Link.Receive(now, batch)
		if k == 0 || err != nil {
			return 0, err
		}
		for i := range batch[:k] {
			if l.keeps(&batch[i]) {
				batch[n], n = batch[i], n+1
			}
		}
	}
	return n, nil
}

// keeps damages a packet or not, and reports whether it arrives.
func (l *damager) keeps(f *wire.RxFrame) bool {
	if l.n++; l.seed == 0 {
		return true
	}
	switch rand.New(rand.NewPCG(l.seed, l.n)).IntN(100) {
	case 0:
		return false
	case 1:
		f.BadICRC = true
	case 2, 3, 4:
		f.TClass |= 3
	case 5:
		f.Tagged, f.TCI = true, 5
	case 6:
		f.Src = f.Dst
	}
	return true
}

// A joinCounter is packetsOnly and counts the packets that a NIC receives, and the runs that it
// makes of them.
type joinCounter struct {
	damager
	runs, packets int
}

func (l *joinCounter) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.damager.Receive(now, batch)
	for frames := batch[:n]; len(frames) > 0; frames = frames[nic.Joined(frames):] {
		l.runs++
	}
	l.packets += n
	return n, err
}

// A runCounter counts the frames and packets that a NIC receives.
type runCounter struct {
	wire.Link
	frames, packets int
}

func (l *runCounter) HoldsReferences() bool { return wire.HoldsReferences(l.Link) }

func (l *runCounter) Counters() *wire.LinkCounters { return l.Link.(wire.Counted).Counters() }

func (l *runCounter) CarriesRuns(p *wire.Path) bool { return wire.CarriesRuns(l.Link, p) }

func (l *runCounter) ReceiveRuns(now int64, batch []wire.RxFrame) (int, error) {
	n, err := wire.ReceiveRuns(l.Link, now, batch)
	for i := range batch[:n] {
		l.frames++
		l.packets += batch[i].Run.Packets()
	}
	return n, err
}

// NICs that send runs, or make runs of the packets that arrive together, do, step by step, what
// they do with packets: completions, counters and memory are the same, with many queue pairs,
// messages of many lengths, both kinds of memory, receives that come late or are too short, and
// regions that are deregistered.
func TestRunsChangeNothing(t *testing.T) {
	frames, packets := 0, 0
	runs, joined := 0, 0
	for seed := range uint64(24) {
		// Packets, runs, packets that are joined; damaged packets, damaged packets that are joined.
		var logs [5]string
		for mode := range logs {
			damage := uint64(0)
			if mode >= 3 {
				damage = seed + 1
			}
			r := rand.New(rand.NewPCG(seed, 5))
			w := newTestFabric(t)
			w.mem = 1 << 19
			count, joins := &runCounter{}, &joinCounter{}
			var cs [2]*client
			for i := range cs {
				cs[i] = w.client(w.nic(byte(i+1), func(l wire.Link) wire.Link {
					switch {
					case mode == 0 || mode == 3 || mode == 4 && i == 0:
						return &damager{packetsOnly: packetsOnly{l}, single: mode != 4, seed: damage}
					case i == 1 && mode == 1:
						count.Link = l
						return count
					case i == 1:
						joins.damager = damager{packetsOnly: packetsOnly{l}, seed: damage}
						return joins
					case mode == 2:
						return packetsOnly{l}
					}
					return l
				}))
				fill(cs[i].mem[:1<<18], byte(seed))
				if seed%2 == 0 {
					cs[i].useCopiedMemory()
				}
			}
			mtu := []int{256, 1024, 4096}[r.IntN(3)]
			pairs := make([][2]*queue, 1+r.IntN(5))
			for i := range pairs {
				a, b := cs[0].qp(smallCaps), cs[1].qp(smallCaps)
				a.connect(mtu, b)
				b.connect(mtu, a)
				pairs[i] = [2]*queue{a, b}
				for range r.IntN(8) {
					b.recv(99, b.sge(1<<18, 120<<10))
				}
			}
			state := func(q *queue) nic.QPAttr {
				a, err := q.Query()
				check(t, err)
				return a
			}
			var log bytes.Buffer
			for step := range 60 {
				p := pairs[r.IntN(len(pairs))]
				n := r.IntN(100 << 10)
				if r.IntN(2) == 0 {
					n = (1 + r.IntN(24)) * mtu
				}
				op := []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRSend, ib.WRRDMAWriteWithImm, ib.WRRDMARead}[r.IntN(5)]
				if p[0].SendRoom() > 0 && state(p[0]).State == ib.QPSRTS {
					p[0].post(transport.SendWR{ID: uint64(step), Opcode: op, RemoteAddr: 1 << 18, RKey: cs[1].mr.RKey(), SGEs: cs[0].sge(r.IntN(1<<17), n)})
				}
				if r.IntN(2) == 0 {
					p[1].recv(uint64(step), cs[1].sge(1<<18, 120<<10-r.IntN(16)/15*(100<<10)))
				}
				if step == 50 && seed%3 == 0 {
					check(t, cs[1].Context.DeregMR(cs[1].mr))
				}
				w.now += 1000
				w.engine.Step(w.now)
				for _, c := range cs {
					fmt.Fprintln(&log, step, c.cq.PollAll())
				}
			}
			for i := range 100 { // for what waits
				p := pairs[i%len(pairs)]
				if p[1].Recv.Room() > 0 {
					p[1].recv(100, p[1].sge(1<<18, 120<<10))
				}
			}
			w.run(1e9)
			for i, c := range cs {
				fmt.Fprintf(&log, "%v %+v\n", c.cq.PollAll(), c.Device.Counters())
				for _, e := range c.Events {
					fmt.Fprintln(&log, e.Type)
				}
				if i == 1 && bytes.Equal(c.mem[1<<18:], make([]byte, 1<<18)) {
					t.Errorf("seed %d: nothing was written", seed)
				}
			}
			for _, p := range pairs {
				fmt.Fprintf(&log, "%+v %+v\n", state(p[0]).QPAttr, state(p[1]).QPAttr)
			}
			fmt.Fprintf(&log, "%x", cs[1].mem[1<<18:1<<18+1000])
			logs[mode] = log.String()
			frames, packets = frames+count.frames, packets+count.packets
			if damage == 0 {
				runs, joined = runs+joins.runs, joined+joins.packets
			}
		}
		if logs[0] == logs[3] {
			t.Errorf("seed %d: no packet was damaged", seed)
		}
		for mode, want := range [...]string{1: logs[0], 2: logs[0], 4: logs[3]} {
			if want == "" || want == logs[mode] {
				continue
			}
			x, y := bytes.Split([]byte(want), []byte("\n")), bytes.Split([]byte(logs[mode]), []byte("\n"))
			for i := range x {
				if i >= len(y) || !bytes.Equal(x[i], y[i]) {
					at := 0
					for y := y[min(i, len(y)-1)]; at < min(len(x[i]), len(y)) && x[i][at] == y[at]; at++ {
					}
					t.Fatalf("seed %d, mode %d, from %d on: packets\n%s\nruns\n%s", seed, mode, at, x[i][max(0, at-200):], y[min(i, len(y)-1)][max(0, at-200):])
				}
			}
		}
	}
	if frames*3 > packets {
		t.Errorf("%d packets arrived in %d frames", packets, frames)
	}
	if runs*3 > joined {
		t.Errorf("%d packets became %d runs", joined, runs)
	}
}

// A long message between two NICs of one engine costs few frames.
func TestLongMessagesAreRuns(t *testing.T) {
	w := newTestFabric(t)
	count := &runCounter{}
	a := w.client(w.nic(1)).qp(smallCaps)
	b := w.client(w.nic(2, func(l wire.Link) wire.Link { count.Link = l; return count })).qp(smallCaps)
	a.connect(4096, b)
	b.connect(4096, a)
	for i := range 4 {
		a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64<<10)})
	}
	w.run(1e9)
	if count.packets != 64 || count.frames > 8 {
		t.Errorf("4 messages of 64 KiB: %d packets in %d frames", count.packets, count.frames)
	}
}

// Packets are joined only if they continue a message the same way and with the same length, and
// nothing about them is unusual.
func TestOnlyWhatContinuesAMessageIsJoined(t *testing.T) {
	frames := func() []wire.RxFrame {
		first := packet.Header{BTH: packet.BTH{Opcode: packet.WriteFirst, PKey: packet.DefaultPKey, DestQP: 18, PSN: packet.PSNMask}}
		head := make([]byte, packet.MaxHeaderLen)
		head = head[:first.Put(head)]
		fs := make([]wire.RxFrame, 3)
		for k, run := range []packet.Run{{}, {Repeat: 1}, {Repeat: 2, Ends: true}} {
			b := make([]byte, packet.MaxHeaderLen)
			fs[k] = wire.RxFrame{Head: append(b[:run.Header(b, head, k)], make([]byte, 256)...),
				Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
		}
		return fs
	}
	for name, c := range map[string]struct {
		change func(fs []wire.RxFrame)
		want   int
	}{
		"nothing":        {func([]wire.RxFrame) {}, 3},
		"IPv4 ID":        {func(fs []wire.RxFrame) { fs[1].ID++ }, 3},
		"payload apart":  {func(fs []wire.RxFrame) { h := fs[1].Head; fs[1].Head, fs[1].Tail = h[:20], [][]byte{h[20:30], h[30:]} }, 3},
		"source":         {func(fs []wire.RxFrame) { fs[1].Src = fs[1].Dst }, 1},
		"destination":    {func(fs []wire.RxFrame) { fs[2].Dst = fs[2].Src }, 2},
		"network":        {func(fs []wire.RxFrame) { fs[1].Network = packet.RoCEv1 }, 1},
		"congestion":     {func(fs []wire.RxFrame) { fs[2].TClass = 3 }, 2},
		"VLAN":           {func(fs []wire.RxFrame) { fs[1].Tagged, fs[1].TCI = true, 7 }, 1},
		"priority":       {func(fs []wire.RxFrame) { fs[0].Tagged, fs[1].Tagged, fs[1].TCI = true, true, 1<<13 }, 1},
		"ICRC of first":  {func(fs []wire.RxFrame) { fs[0].BadICRC = true }, 1},
		"ICRC of last":   {func(fs []wire.RxFrame) { fs[2].BadICRC = true }, 2},
		"run":            {func(fs []wire.RxFrame) { fs[0].Run.Repeat = 1 }, 1},
		"run behind":     {func(fs []wire.RxFrame) { fs[2].Run.Repeat = 1 }, 2},
		"shorter":        {func(fs []wire.RxFrame) { fs[2].Head = fs[2].Head[:len(fs[2].Head)-4] }, 2},
		"longer":         {func(fs []wire.RxFrame) { fs[1].Tail = [][]byte{{1, 2, 3, 4}} }, 1},
		"cut":            {func(fs []wire.RxFrame) { fs[1].Head = fs[1].Head[:packet.BTHLen-1] }, 1},
		"first cut":      {func(fs []wire.RxFrame) { fs[0].Head = fs[0].Head[:packet.BTHLen-1] }, 1},
		"only BTH first": {func(fs []wire.RxFrame) { fs[0].Head = fs[0].Head[:packet.BTHLen] }, 1},
		"empty":          {func(fs []wire.RxFrame) { fs[0].Head, fs[1].Head = nil, nil }, 1},
	} {
		fs := frames()
		c.change(fs)
		if n := nic.Joined(fs); n != c.want {
			t.Errorf("%s: %d packets are joined, want %d", name, n, c.want)
		}
	}
}

// A runWatcher is packetsOnly and passes no more than max packets together. It records how many
// packets the longest run had that the device took before a Receive.
type runWatcher struct {
	packetsOnly
	device       *nic.Device
	max, longest int
}

func (l *runWatcher) Receive(now int64, batch []wire.RxFrame) (int, error) {
	if l.device != nil {
		l.longest = max(l.longest, l.device.LastRun().Packets())
	}
	return l.Link.Receive(now, batch[:l.max])
}

// A responder takes the packets of a message that arrive together as one run, of a SEND those
// between the first and the last one.
func TestPacketsThatArriveTogetherAreARun(t *testing.T) {
	for _, c := range []struct {
		op                ib.WROpcode
		together, longest int
	}{
		{ib.WRRDMAWrite, 16, 16}, {ib.WRRDMAWrite, 15, 15}, {ib.WRRDMAWrite, 5, 5}, {ib.WRRDMAWrite, 1, 1},
		{ib.WRRDMAWriteWithImm, 15, 15}, {ib.WRSend, 15, 14}, {ib.WRSend, 5, 5},
	} {
		w := newTestFabric(t)
		watch := &runWatcher{max: c.together}
		a := w.client(w.nic(1, func(l wire.Link) wire.Link { return packetsOnly{l} }))
		b := w.client(w.nic(2, func(l wire.Link) wire.Link { watch.Link = l; return watch }))
		watch.device = b.Device
		x, y := connected(a, b, smallCaps)
		fill(a.mem[:64<<10], 3)
		y.recv(1, b.sge(1<<16, 64<<10))
		x.post(transport.SendWR{Opcode: c.op, RemoteAddr: 1 << 16, RKey: b.mr.RKey(), SGEs: a.sge(0, 64<<10)})
		w.run(1e9)
		if !bytes.Equal(b.mem[1<<16:2<<16], a.mem[:1<<16]) {
			t.Errorf("%v: the message did not arrive", c.op)
		}
		if watch.longest != c.longest {
			t.Errorf("%v, %d packets together: a run of %d packets, want %d", c.op, c.together, watch.longest, c.longest)
		}
	}
}

var _ wire.RunCarrier = (*runCounter)(nil)
