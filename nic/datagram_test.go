package nic_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

const testQKey = 0x11111111

// ud makes a UD queue pair in RTS.
func (c *client) ud() *queue {
	q := c.qpOf(ib.QPTypeUD, smallCaps)
	q.toUDRTS()
	return q
}

func (q *queue) toUDRTS() {
	q.connectWith(nic.QPAttr{QPAttr: ib.QPAttr{QKey: testQKey, SQPSN: 100}, Port: 1})
}

// ah creates address handle n of c, for an IPv4 destination.
func (c *client) ah(n uint32, dst string) *nic.AH {
	av := nic.AddressVector{DGID: nic.GIDOf(netip.MustParseAddr(dst)), SGIDIndex: 1, Port: 1, TClass: 0x28}
	var err error
	av.Path, err = c.Device.ResolvePath(context.Background(), &av)
	check(c.t, err)
	a, err := c.Context.CreateAH(c.pd, n, av)
	check(c.t, err)
	return a
}

func (q *queue) sendTo(id uint64, ah, qpn uint32, n int) {
	q.post(transport.SendWR{ID: id, Opcode: ib.WRSend, Dest: ah, RemoteQPN: qpn, RemoteQKey: testQKey, SGEs: q.sge(0, n)})
}

func TestUCTransfersMessages(t *testing.T) {
	for _, n := range []int{0, 1, 1024, 5000, 1 << 18} {
		w := newTestFabric(t)
		a, b := w.client(w.nic(1)).qpOf(ib.QPTypeUC, smallCaps), w.client(w.nic(2)).qpOf(ib.QPTypeUC, smallCaps)
		a.connect(1024, b)
		b.connect(1024, a)
		fill(a.mem[:n], 1)
		b.recv(70, b.sge(1<<21, 1<<20))
		b.recv(71, nil)
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, n)})
		a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWriteWithImm, Imm: 5, RemoteAddr: 64, RKey: b.mr.RKey(), SGEs: a.sge(0, n)})
		a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8)})
		a.post(transport.SendWR{ID: 4, Opcode: ib.WRSend})
		w.run(1e9)
		a.want(1, ib.WCSuccess, ib.WCSend)
		a.want(2, ib.WCSuccess, ib.WCRDMAWrite)
		a.want(3, ib.WCLocQPOpErr, 0)
		a.want(4, ib.WCWRFlushErr, 0)
		b.want(70, ib.WCSuccess, ib.WCRecv)
		if c := b.want(71, ib.WCSuccess, ib.WCRecvRDMAWithImm); c.Imm != 5 || c.SrcQP != a.QPN() {
			t.Errorf("completion %+v", c)
		}
		if !bytes.Equal(b.mem[64:][:n], a.mem[:n]) || !bytes.Equal(b.mem[1<<21:][:n], a.mem[:n]) {
			t.Error("the received data differs")
		}
		if got := a.State(); got != ib.QPSSQE {
			t.Errorf("state %v", got)
		}
	}
}

func TestSendsPostedInSQEAreFlushed(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).qpOf(ib.QPTypeUC, smallCaps), w.client(w.nic(2)).qpOf(ib.QPTypeUC, smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8)})
	w.run(1e6)
	for i := range 100 {
		a.post(transport.SendWR{ID: uint64(10 + i), Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	}
	check(t, a.SetState(ib.QPSRTS))
	b.recv(70, b.sge(0, 100))
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	w.run(1e6)
	a.want(1, ib.WCLocQPOpErr, 0)
	for i := range 100 {
		a.want(uint64(10+i), ib.WCWRFlushErr, 0)
	}
	a.want(2, ib.WCSuccess, ib.WCSend)
	b.want(70, ib.WCSuccess, ib.WCRecv)
}

// A client may post as fast as the engine flushes.
func TestPostingInSQEDoesNotOccupyTheEngine(t *testing.T) {
	w := newTestFabric(t)
	c, b := w.client(w.nic(1)), w.client(w.nic(2)).qpOf(ib.QPTypeUC, smallCaps)
	c.cq = c.newCQ(1 << 14)
	caps := smallCaps
	caps.MaxSendWR = 4096
	a := c.qpOf(ib.QPTypeUC, caps)
	a.connect(1024, b)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8)})
	w.run(1e6)
	producer, consumer := nictest.Word(a.SendRing, abi.RingProducer), nictest.Word(a.SendRing, abi.RingConsumer)
	size := uint32(a.Caps().MaxSendWR)
	atomic.StoreUint32(producer, atomic.LoadUint32(consumer)+size)
	var stop atomic.Bool
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		close(started)
		for done := uint32(0); done < 1e6 && !stop.Load(); {
			done = atomic.LoadUint32(consumer)
			atomic.StoreUint32(producer, done+size)
		}
	}()
	<-started
	check(t, a.SetState(ib.QPSRTS))
	stop.Store(true)
	<-ended
	if n := atomic.LoadUint32(consumer); n > 1<<14 {
		t.Errorf("%d work requests were flushed in one call", n)
	}
}

func TestDatagramHasGRH(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	a.ah(7, "192.0.2.2")
	fill(a.mem[:1000], 1)
	b.recv(70, b.sge(0, 4096))
	a.sendTo(1, 7, b.QPN(), 1000)
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCSend)
	c := b.want(70, ib.WCSuccess, ib.WCRecv)
	if c.ByteLen != 1040 || c.SrcQP != a.QPN() || c.Flags != ib.WCGRH || c.SL != 2 {
		t.Errorf("completion %+v", c)
	}
	g := packet.GRH(b.mem[:40])
	if !g.Is4() || g.Src().String() != "192.0.2.1" || g.Dst().String() != "192.0.2.2" || g.TClass() != 0x28 || g.HopLimit() != 64 {
		t.Errorf("GRH % x", b.mem[:40])
	}
	if !bytes.Equal(b.mem[:20], make([]byte, 20)) || be.Uint16(b.mem[22:]) != 20+8+20+1000+4 {
		t.Errorf("GRH % x", b.mem[:40])
	}
	if !bytes.Equal(b.mem[40:1040], a.mem[:1000]) {
		t.Error("the received data differs")
	}
}

func TestDatagramOnIPv6HasWholeHeader(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	av := nic.AddressVector{DGID: b.Device.GIDs()[0].GID, Port: 1, TClass: 3, FlowLabel: 0x12345, HopLimit: 9}
	var err error
	av.Path, err = a.Device.ResolvePath(context.Background(), &av)
	check(t, err)
	_, err = a.Context.CreateAH(a.pd, 1, av)
	check(t, err)
	b.Device.Link().(*wire.FabricLink).SetAddresses(av.DGID.Addr())
	b.recv(70, b.sge(0, 4096))
	a.sendTo(1, 1, b.QPN(), 3)
	w.run(1e6)
	c := b.want(70, ib.WCSuccess, ib.WCRecv)
	g := packet.GRH(b.mem[:40])
	if c.SL != 1 || g.Is4() || g.Dst() != av.DGID.Addr() || g.FlowLabel() != 0x12345 || g.HopLimit() != 9 || g.TClass() != 3 {
		t.Errorf("%+v, GRH % x", c, b.mem[:40])
	}
}

// Receives into memory that is written late must not share the storage of the GRH.
func TestDatagramsOfOneBatchHaveTheirOwnGRH(t *testing.T) {
	w := newTestFabric(t)
	b := w.client(w.nic(9)).ud()
	var senders []*queue
	for i := range byte(3) {
		a := w.client(w.nic(i + 1)).ud()
		a.ah(1, "192.0.2.9")
		b.recv(uint64(i), b.sge(int(i)*100, 100))
		senders = append(senders, a)
	}
	for _, a := range senders {
		a.sendTo(0, 1, b.QPN(), 8)
	}
	w.run(1e6)
	for i, a := range senders {
		c := b.want(uint64(i), ib.WCSuccess, ib.WCRecv)
		g := packet.GRH(b.mem[i*100:][:40])
		if c.SrcQP != a.QPN() || g.Src() != a.Device.GIDs()[1].GID.Addr() {
			t.Errorf("receive %d: QP %#x, from %v", i, c.SrcQP, g.Src())
		}
	}
}

func TestAddressHandleNeedsPDOfQueuePair(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	a, other := w.client(d), w.client(d)
	pd, err := a.Context.AllocPD()
	check(t, err)
	a.ah(1, "192.0.2.1")
	other.ah(2, "192.0.2.1")
	av := nic.AddressVector{DGID: d.GIDs()[1].GID, SGIDIndex: 1, Port: 1}
	av.Path, err = d.ResolvePath(context.Background(), &av)
	check(t, err)
	h3, err := a.Context.CreateAH(pd, 3, av)
	check(t, err)
	_, err = a.Context.CreateAH(pd, 3, av)
	wantErrno(t, "a number that is taken", err, syscall.EEXIST)
	wantErrno(t, "PD of an AH", a.Context.DeallocPD(pd), syscall.EBUSY)
	gone := a.ah(4, "192.0.2.1")
	check(t, a.Context.DestroyAH(gone))
	wantErrno(t, "AH a second time", a.Context.DestroyAH(gone), syscall.ENOENT)
	wantErrno(t, "AH of another context", other.Context.DestroyAH(h3), syscall.ENOENT)
	for _, c := range []struct {
		what string
		ah   uint32
		ok   bool
	}{{"own", 1, true}, {"of another context", 2, false}, {"of another PD", 3, false}, {"destroyed", 4, false}, {"none", 0, false}} {
		q := a.ud()
		q.sendTo(uint64(c.ah), c.ah, 1, 8)
		w.run(1e6)
		status := ib.WCLocQPOpErr
		if c.ok {
			status = ib.WCSuccess
		}
		if got, _ := a.cq.Poll(); got.Status != status || (q.State() == ib.QPSSQE) == c.ok {
			t.Errorf("%s: %v in %v", c.what, got.Status, q.State())
		}
	}
}

func TestControlledQKeyNeedsPrivilege(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	for _, privileged := range []bool{false, true} {
		c := w.open(d, nic.ContextOptions{Privileged: privileged})
		c.cq = c.newCQ(16)
		q := c.qpOf(ib.QPTypeUD, smallCaps)
		a := nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSInit, QKey: 0x80010000}, Port: 1}
		err := q.Modify(&a, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskQKey)
		if privileged {
			check(t, err)
		} else {
			wantErrno(t, "a controlled Q_Key", err, syscall.EPERM)
		}
	}
}

// A pathRecorder records the paths of sent frames.
type pathRecorder struct {
	wire.Link
	paths []*wire.Path
}

func (l *pathRecorder) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch {
		l.paths = append(l.paths, batch[i].Path)
	}
	return l.Link.Send(now, batch)
}

func TestDatagramSourcePortMatchesLinuxDriver(t *testing.T) {
	w := newTestFabric(t)
	var rec *pathRecorder
	c := w.client(w.nic(1, func(l wire.Link) wire.Link { rec = &pathRecorder{Link: l}; return rec }))
	c.ah(1, "192.0.2.2")
	q1, q2 := c.ud(), c.ud()
	for _, q := range []*queue{q1, q2, q1, q2} {
		q.sendTo(0, 1, 9, 8)
		w.run(1e6)
	}
	for i, q := range []*queue{q1, q2, q1, q2} {
		want := 0xc000 | uint16(q.QPN()*0x61c88647>>18)
		if rec.paths[i].SrcPort != want {
			t.Errorf("QP %#x sends from port %d, want %d", q.QPN(), rec.paths[i].SrcPort, want)
		}
	}
	if rec.paths[0] != rec.paths[2] || rec.paths[1] != rec.paths[3] {
		t.Error("a path was created for each datagram")
	}
}

// Captures of the Linux driver have QP 1 at this port.
func TestSourcePortOfQP1(t *testing.T) {
	if got := nic.DatagramPort(1); got != 55410 {
		t.Errorf("source port %d, want 55410", got)
	}
}

// A program may write to its buffer as soon as it sees the completion.
func TestBufferOfUnreliableSendIsReusableOnCompletion(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeUC, ib.QPTypeUD} {
		w := newTestFabric(t)
		a := w.client(w.nic(1, func(l wire.Link) wire.Link { return &slowLink{Link: l} })).qpOf(kind, smallCaps)
		b := w.client(w.nic(2)).qpOf(kind, smallCaps)
		if kind == ib.QPTypeUC {
			a.connect(1024, b)
			b.connect(1024, a)
		} else {
			a.toUDRTS()
			b.toUDRTS()
			a.ah(1, "192.0.2.2")
		}
		const n = 30
		for i := range n {
			b.recv(uint64(i), b.sge(i*2048, 2048))
			fill(a.mem[i*1024:][:1024], byte(i))
			a.store(&transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, Dest: uint32(1), RemoteQPN: b.QPN(), RemoteQKey: testQKey, SGEs: a.sge(i*1024, 1024)})
		}
		a.Publish()
		for range 200 {
			w.now++
			w.engine.Step(w.now)
			for _, c := range a.cq.PollAll() {
				clear(a.mem[int(c.WRID)*1024:][:1024])
			}
		}
		grh := 0
		if kind == ib.QPTypeUD {
			grh = packet.GRHLen
		}
		want := make([]byte, 1024)
		for i := range n {
			b.want(uint64(i), ib.WCSuccess, ib.WCRecv)
			if fill(want, byte(i)); !bytes.Equal(b.mem[i*2048+grh:][:1024], want) {
				t.Fatalf("%v: message %d changed after it was sent", kind, i)
			}
		}
	}
}

// A completionObserver reports a completion that is visible before the link has the frame.
type completionObserver struct {
	wire.Link
	early func() bool
	t     *testing.T
}

func (l *completionObserver) Send(now int64, batch []wire.TxFrame) (int, error) {
	if l.early() {
		l.t.Error("a completion was visible before the link had the frame")
	}
	return l.Link.Send(now, batch)
}

func TestUnreliableSendCompletesAfterLinkSend(t *testing.T) {
	w := newTestFabric(t)
	var j *completionObserver
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { j = &completionObserver{Link: l, t: t}; return j })).ud()
	j.early = func() bool { return a.cq.Len() > 0 }
	a.ah(1, "192.0.2.1") // itself
	for i := range 3 {
		a.recv(10, a.sge(0, 100))
		a.sendTo(uint64(i), 1, a.QPN(), 8)
		w.run(1e6)
		if l := a.cq.PollAll(); len(l) != 2 {
			t.Fatalf("completions %+v, want 2", l)
		}
	}
}

func TestDatagramsDoNotAllocate(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	a.ah(1, "192.0.2.2")
	a.ah(2, "239.1.2.3")
	check(t, b.Context.AttachMcast(b.QP.QP, nic.GIDOf(netip.MustParseAddr("239.1.2.3"))))
	req := transport.SendWR{Opcode: ib.WRSend, Dest: uint32(1), RemoteQPN: b.QPN(), RemoteQKey: testQKey, SGEs: a.sge(0, 64)}
	multi := transport.SendWR{Opcode: ib.WRSend, Dest: uint32(2), RemoteQPN: 0xffffff, RemoteQKey: testQKey, SGEs: a.sge(0, 64)}
	into := b.sge(0, 200)
	round := func() {
		for range 4 {
			b.recv(0, into)
			b.recv(0, into)
			a.store(&req)
			a.store(&multi)
		}
		a.Publish()
		w.step()
		for _, q := range []*queue{a, b} {
			for n := 0; ; n++ {
				if _, ok := q.cq.Poll(); !ok {
					if n != 8 {
						t.Fatalf("%d completions", n)
					}
					break
				}
			}
		}
	}
	for range 20 {
		round()
	}
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

// A wideLink takes batches that are longer than a send ring of 128 slots.
type wideLink struct{ wire.Link }

func (l wideLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.MaxBatch = 256
	return c
}

// A slot of the send ring is free as soon as its datagram is in a frame, and the client may post
// while the engine transmits. The inline data of a frame that has not left stays as it was.
func TestInlineDataIsKeptUntilTheFrameHasLeft(t *testing.T) {
	const messages = 20_000
	w := newTestFabric(t)
	c, d := w.client(w.nic(1, func(l wire.Link) wire.Link { return wideLink{l} })), w.client(w.nic(2))
	caps := nic.Caps{MaxSendWR: 128, MaxRecvWR: 4096, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}
	c.cq, d.cq = c.newCQ(1<<15), d.newCQ(1<<15)
	a, b := c.qpOf(ib.QPTypeUC, caps), d.qpOf(ib.QPTypeUC, caps)
	a.connect(1024, b)
	b.connect(1024, a)
	for range caps.MaxSendWR { // only the data differ
		a.PutSend(&transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: make([]byte, 4)})
	}
	producer, consumer := nictest.Word(a.SendRing, abi.RingProducer), nictest.Word(a.SendRing, abi.RingConsumer)
	slots := uint32(caps.MaxSendWR)
	slotSize := uint32(abi.SendSlotSize(a.Caps().MaxSendSGE, a.Caps().MaxInline))
	go func() {
		for i := uint32(0); i < messages; a.RingDoorbell() {
			for ; i < messages && i-atomic.LoadUint32(consumer) < slots; i++ {
				data := abi.RingSlots + i%slots*slotSize + uint32(abi.SendWQESize)
				atomic.StoreUint32(nictest.Word(a.SendRing, int(data)), i+1)
				atomic.StoreUint32(producer, i+1)
			}
			runtime.Gosched() // with GOMAXPROCS=1 the engine waits for this goroutine
		}
	}()
	next, last := 0, uint32(0)
	for last < messages && !t.Failed() {
		for ; b.Recv.Room() > 0; next++ {
			b.recv(uint64(next%4096), b.sge(next%4096*4, 4))
		}
		w.now++
		w.engine.Step(w.now)
		runtime.Gosched()
		for _, r := range b.cq.PollAll() {
			got := binary.NativeEndian.Uint32(b.mem[r.WRID*4:])
			if got != last+1 {
				t.Errorf("message %d arrived as %d", last+1, got)
			}
			last++
		}
	}
}
