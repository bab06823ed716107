package nic_test

import (
	"bytes"
	"testing"
	"unsafe"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// useCopiedMemory registers c's memory like that of another process, which the kernel copies.
func (c *client) useCopiedMemory() {
	c.t.Helper()
	p, err := nictest.ThisProcess()
	check(c.t, err)
	m, err := p.Memory(uint64(uintptr(unsafe.Pointer(&c.mem[0]))), uint64(len(c.mem)), allow)
	check(c.t, err)
	check(c.t, p.Close())
	c.mr, err = c.Context.RegMR(c.pd, m, 0, uint64(len(c.mem)), allow)
	check(c.t, err)
}

func BenchmarkCopiedWrite1MiB(b *testing.B)  { benchmarkCopied(b, ib.WRRDMAWrite, 1<<20, 4) }
func BenchmarkCopiedWrite64KiB(b *testing.B) { benchmarkCopied(b, ib.WRRDMAWrite, 1<<16, 16) }
func BenchmarkCopiedWrite64B(b *testing.B)   { benchmarkCopied(b, ib.WRRDMAWrite, 64, 64) }
func BenchmarkCopiedRead1MiB(b *testing.B)   { benchmarkCopied(b, ib.WRRDMARead, 1<<20, 4) }
func BenchmarkCopiedRead64B(b *testing.B)    { benchmarkCopied(b, ib.WRRDMARead, 64, 16) }

// A payloadRecorder is a link that copies payload, to nowhere, and records where the first of each
// Send was. With fabric it is a fabric that does so.
type payloadRecorder struct {
	wire.Link
	fabric bool
	at     []*byte
	frames int
}

// Capabilities are those of a link to a network.
func (l *payloadRecorder) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.ICRC = !l.fabric
	return c
}

// HoldsReferences implements wire.Referrer.
func (l *payloadRecorder) HoldsReferences() bool { return wire.HoldsReferences(l.Link) }

func (l *payloadRecorder) Send(now int64, batch []wire.TxFrame) (int, error) {
	l.frames += len(batch)
	if p := batch[0].Payload; len(p) > 0 {
		l.at = append(l.at, &p[0][0])
	}
	if l.fabric {
		return l.Link.Send(now, batch)
	}
	return len(batch), nil
}

// What is read for a link that copies is not needed after the step, nor what a fabric refers to
// after the receive phase of the next one. The memory that the next step reads to is in the
// processor's cache.
func TestEachStepReadsToTheSameMemory(t *testing.T) {
	for _, fabric := range []bool{false, true} {
		w := newTestFabric(t)
		l := &payloadRecorder{fabric: fabric}
		a := w.client(w.nic(1, func(inner wire.Link) wire.Link { l.Link = inner; return l })).qp(smallCaps)
		b := w.client(w.nic(2)).qp(smallCaps)
		a.connect(4096, b)
		a.useCopiedMemory()
		for range 3 {
			a.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64<<10)})
			w.steps(1)
		}
		if len(l.at) != 3 || l.at[0] != l.at[1] || l.at[1] != l.at[2] {
			t.Errorf("fabric %v: the steps read to %v", fabric, l.at)
		}
	}
}

// On a link to a network, memory that only the kernel can copy has the same budget as mapped
// memory.
func TestCopiedMemoryHasFullBudgetOnNetworkLinks(t *testing.T) {
	var sent [2]int
	for i := range sent {
		w := newTestFabric(t)
		l := &payloadRecorder{}
		a := w.client(w.nic(1, func(inner wire.Link) wire.Link { l.Link = inner; return l })).qp(smallCaps)
		b := w.client(w.nic(2)).qp(smallCaps)
		a.connect(4096, b)
		if i == 1 {
			a.useCopiedMemory()
		}
		a.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 1<<20)})
		w.steps(2) // the first notes what memory it is
		sent[i] = l.frames
	}
	if sent[0] != sent[1] || sent[0] == 0 {
		t.Errorf("two steps have sent %d packets of mapped memory, %d of other", sent[0], sent[1])
	}
}

// Frames in a link refer to what was read for them until the link is empty, whichever of two
// devices sends. The end of a client transmits for one queue pair after the other.
func TestFramesKeepWhatWasReadForThem(t *testing.T) {
	const pairs, size = 4, 16 << 10
	for _, sender := range []int{0, 1} {
		w := newTestFabric(t)
		w.mem = pairs * size
		var clients [2]*client
		for i := range clients {
			clients[i] = w.client(w.nic(byte(i + 1)))
		}
		from, to := clients[sender], clients[1-sender]
		for i := range from.mem {
			from.mem[i] = byte(i/size + 1)
		}
		from.useCopiedMemory()
		for i := range pairs {
			a, b := from.qp(smallCaps), to.qp(smallCaps)
			a.connect(4096, b)
			b.connect(4096, a)
			a.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RemoteAddr: uint64(i * size), RKey: to.mr.RKey(), SGEs: a.sge(i*size, size)})
		}
		from.Context.Close()
		w.run(1e9)
		if !bytes.Equal(to.mem, from.mem) {
			t.Errorf("device %d sends: the target has other bytes than the source", sender)
		}
	}
}

// Received frames may wait for the rate of the target's link, while later ones are read.
func TestFramesThatWaitForTheRateKeepWhatWasReadForThem(t *testing.T) {
	const size = 1 << 22
	for _, sender := range []int{0, 1} {
		w := newTestFabric(t)
		w.mem = size
		var clients [2]*client
		for i := range clients {
			clients[i] = w.client(w.nic(byte(i+1), func(l wire.Link) wire.Link {
				if i == sender {
					return l
				}
				return wire.NewShapedLink(l, wire.Shape{Rate: 400e9})
			}))
		}
		from, to := clients[sender], clients[1-sender]
		for i := range from.mem {
			from.mem[i] = byte(i/4096 + 1)
		}
		from.useCopiedMemory()
		a, b := from.qp(smallCaps), to.qp(smallCaps)
		a.connect(4096, b)
		b.connect(4096, a)
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: to.mr.RKey(), SGEs: a.sge(0, size)})
		w.run(1e9)
		a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
		if !bytes.Equal(to.mem, from.mem) {
			t.Errorf("device %d sends: the target has other bytes than the source", sender)
		}
	}
}

// A backlog behind the rate of one NIC does not keep memory from clients of another.
func TestFramesThatWaitForTheRateKeepNoMemoryFromOthers(t *testing.T) {
	w := newTestFabric(t)
	var queues [4]*queue
	for i := range queues {
		c := w.client(w.nic(byte(i+1), func(l wire.Link) wire.Link {
			if i == 1 {
				return wire.NewShapedLink(l, wire.Shape{Rate: 1e9})
			}
			return l
		}))
		if i == 2 {
			c.useCopiedMemory()
		}
		queues[i] = c.qp(smallCaps)
	}
	for i := 0; i < len(queues); i += 2 {
		from, to := queues[i], queues[i+1]
		from.connect(4096, to)
		to.connect(4096, from)
		from.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: to.mr.RKey(), SGEs: from.sge(0, len(from.mem))})
	}
	w.run(5e6)
	queues[0].wantNone()
	queues[2].want(1, ib.WCSuccess, ib.WCRDMAWrite)
}
