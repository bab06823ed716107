package nic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// packetsOnly hides from a NIC that its link carries runs.
type packetsOnly struct{ wire.Link }

func (l packetsOnly) HoldsReferences() bool { return wire.HoldsReferences(l.Link) }

func (l packetsOnly) Counters() *wire.LinkCounters { return l.Link.(wire.Counted).Counters() }

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

// NICs that send runs do, step by step, what they do with packets: completions, counters and
// memory are the same, with many queue pairs, messages of many lengths, both kinds of memory,
// receives that come late or are too short, and regions that are deregistered.
func TestRunsChangeNothing(t *testing.T) {
	frames, packets := 0, 0
	for seed := range uint64(24) {
		var logs [2]string
		for mode := range logs { // packets, runs
			r := rand.New(rand.NewPCG(seed, 5))
			w := newTestFabric(t)
			w.mem = 1 << 19
			count := &runCounter{}
			var cs [2]*client
			for i := range cs {
				cs[i] = w.client(w.nic(byte(i+1), func(l wire.Link) wire.Link {
					if mode == 0 {
						return packetsOnly{l}
					}
					if i == 1 {
						count.Link = l
						return count
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
		}
		if logs[0] != logs[1] {
			x, y := bytes.Split([]byte(logs[0]), []byte("\n")), bytes.Split([]byte(logs[1]), []byte("\n"))
			for i := range x {
				if i >= len(y) || !bytes.Equal(x[i], y[i]) {
					at := 0
					for y := y[min(i, len(y)-1)]; at < min(len(x[i]), len(y)) && x[i][at] == y[at]; at++ {
					}
					t.Fatalf("seed %d, from %d on: packets\n%s\nruns\n%s", seed, at, x[i][max(0, at-200):], y[min(i, len(y)-1)][max(0, at-200):])
				}
			}
		}
	}
	if frames*3 > packets {
		t.Errorf("%d packets arrived in %d frames", packets, frames)
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

var _ wire.RunCarrier = (*runCounter)(nil)
