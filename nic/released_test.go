package nic_test

import (
	"bytes"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// Memory is released to its program by a completion, by a change of state that ends work requests,
// and by the end of a registration. What leaves afterwards was copied before.

// A gatedLink takes no frames while it is shut, and drops those that drop selects.
type gatedLink struct {
	wire.Link
	shut   bool
	drop   func(*wire.TxFrame) bool
	unread bool // it does not read payload
}

func (l *gatedLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.PayloadUnread = l.unread
	return c
}

func (l *gatedLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch {
		if l.shut {
			return i, nil
		}
		if l.drop != nil && l.drop(&batch[i]) {
			continue
		}
		if n, err := l.Link.Send(now, batch[i:i+1]); n == 0 || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

func (w *testFabric) gated(n byte) (*nic.Device, *gatedLink) {
	var g *gatedLink
	d := w.nic(n, func(l wire.Link) wire.Link { g = &gatedLink{Link: l}; return g })
	return d, g
}

func (w *testFabric) steps(n int) {
	for range n {
		w.now++
		w.engine.Step(w.now)
	}
}

// secret is what a program writes to memory that was released to it.
var secret = bytes.Repeat([]byte{0xee}, 64)

func wantNoSecret(t *testing.T, c *client) {
	t.Helper()
	if bytes.Contains(c.mem, secret[:8]) {
		t.Error("the peer has received what was in the memory after it was released")
	}
}

// A frame waits for a congested link, or is passed by reference to a NIC of the same engine, while
// its queue pair ends or its memory is deregistered.
func TestFramesDoNotReadReleasedMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		op   ib.WROpcode
		give func(t *testing.T, a, b *queue)
	}{
		{"SEND, then ERR", ib.WRSend, func(t *testing.T, a, _ *queue) { check(t, a.SetState(ib.QPSErr)) }},
		{"SEND, then RESET", ib.WRSend, func(t *testing.T, a, _ *queue) { check(t, a.SetState(ib.QPSReset)) }},
		{"SEND, then destroy", ib.WRSend, func(t *testing.T, a, _ *queue) { check(t, a.Destroy()) }},
		{"SEND, then deregister", ib.WRSend, func(t *testing.T, a, _ *queue) { check(t, a.Context.DeregMR(a.mr)) }},
		{"SEND, then close", ib.WRSend, func(_ *testing.T, a, _ *queue) { a.Context.Close() }},
		{"READ, then deregister", ib.WRRDMARead, func(t *testing.T, _, b *queue) { check(t, b.Context.DeregMR(b.mr)) }},
		{"READ, then register again", ib.WRRDMARead, func(t *testing.T, _, b *queue) {
			check(t, b.Context.ReregMR(b.mr, b.pd, mrtable.HeapMemory(make([]byte, 64)), 0, 64, allow))
		}},
	} {
		for _, congested := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				w := newTestFabric(t)
				da, ga := w.gated(1)
				db, gb := w.gated(2)
				a, b := w.client(da).qp(smallCaps), w.client(db).qp(smallCaps)
				a.connect(1024, b)
				b.connect(1024, a)
				b.recv(7, b.sge(4096, 64))
				if c.op == ib.WRRDMARead {
					gb.shut = congested
				} else {
					ga.shut = congested
				}
				a.post(transport.SendWR{ID: 1, Opcode: c.op, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
				w.steps(1)
				if c.op == ib.WRRDMARead {
					w.steps(1) // the response has left b
				}
				c.give(t, a, b)
				copy(a.mem, secret)
				copy(b.mem, secret)
				ga.shut, gb.shut = false, false
				arrived, other := b.client, a.client
				if c.op == ib.WRRDMARead {
					arrived, other = other, arrived
				}
				clear(arrived.mem[:64])
				w.run(1e9)
				wantNoSecret(t, arrived)
			})
		}
	}
}

// What waits is not copied for a link that does not read it.
func TestUnreadPayloadIsNotCopied(t *testing.T) {
	for _, unread := range []bool{false, true} {
		w := newTestFabric(t)
		var g *gatedLink
		da := w.nic(1, func(l wire.Link) wire.Link { g = &gatedLink{Link: l, unread: unread, shut: true}; return g })
		a, b := w.client(da).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
		a.connect(1024, b)
		b.connect(1024, a)
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
		w.steps(1)
		var payload *byte
		g.drop = func(f *wire.TxFrame) bool { payload = &f.Payload[0][0]; return true }
		g.shut = false
		w.steps(1)
		if (payload == &a.mem[0]) != unread || payload == nil {
			t.Errorf("unread %v: payload at %p, the memory of the program is at %p", unread, payload, &a.mem[0])
		}
	}
}

// A retransmitted packet waits for the link when the ACK of the first transmission completes the
// work request.
func TestWaitingRetransmissionDoesNotReadCompletedSend(t *testing.T) {
	w := newTestFabric(t)
	da, ga := w.gated(1)
	db, gb := w.gated(2)
	a, b := w.client(da).qp(smallCaps), w.client(db).qp(smallCaps)
	at := attrs(1024, b)
	at.Timeout = 8 // 1 ms
	a.connectWith(at)
	b.connect(1024, a)
	leaked := false
	ga.drop = func(f *wire.TxFrame) bool {
		leaked = leaked || bytes.Contains(bytes.Join(f.Payload, nil), secret)
		return false
	}
	gb.shut = true // the ACK waits
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RemoteAddr: 4096, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
	w.steps(3)
	ga.shut = true
	for range 100 {
		w.now += 100_000
		w.steps(1)
	}
	if a.Device.Counters().Retransmitted == 0 {
		t.Fatal("nothing was retransmitted")
	}
	gb.shut = false
	w.steps(3)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	copy(a.mem, secret)
	ga.shut = false
	w.run(1e6)
	if leaked {
		t.Error("the retransmitted packet has what was in the buffer after the completion")
	}
}

// A READ response is on its way to a NIC of the same engine when the window that allowed the READ
// is invalidated.
func TestInvalidationEndsReadsThroughTheWindow(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	m, err := b.Context.RegMR(b.pd, mrtable.HeapMemory(b.mem), 1<<32, 4096, ib.AccessLocalWrite|ib.AccessMWBind)
	check(t, err)
	mw := b.window(ib.MWType2)
	b.post(transport.SendWR{ID: 1, Opcode: ib.WRBindMW, RKey: mw.RKey()&^0xff | (mw.RKey()+1)&0xff,
		Bind: transport.Bind{LKey: m.LKey(), Access: ib.AccessRemoteRead, Addr: 1 << 32, Length: 64}})
	w.run(1e6)
	b.want(1, ib.WCSuccess, ib.WCBindMW)
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMARead, RemoteAddr: 1 << 32, RKey: mw.RKey(), SGEs: a.sge(0, 64)})
	w.steps(1)
	b.post(transport.SendWR{ID: 3, Opcode: ib.WRLocalInv, Imm: mw.RKey()})
	w.steps(1) // both the response and the invalidation
	b.want(3, ib.WCSuccess, ib.WCLocalInv)
	copy(b.mem, secret)
	w.run(1e6)
	wantNoSecret(t, a.client)
}

// What was posted before a control operation is transmitted before it: an adapter sees the doorbell
// first.
func TestControlDoesNotOvertakePostedWork(t *testing.T) {
	for _, end := range map[string]func(t *testing.T, a *queue){
		"ERR":     func(t *testing.T, a *queue) { check(t, a.SetState(ib.QPSErr)) },
		"RESET":   func(t *testing.T, a *queue) { check(t, a.SetState(ib.QPSReset)) },
		"destroy": func(t *testing.T, a *queue) { check(t, a.Destroy()) },
		"close":   func(_ *testing.T, a *queue) { a.Context.Close() },
	} {
		for _, service := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
			w := newTestFabric(t)
			a, b := w.client(w.nic(1)).qpOf(service, smallCaps), w.client(w.nic(2)).qpOf(service, smallCaps)
			a.connect(1024, b)
			b.connect(1024, a)
			const n = 100
			for i := range n {
				b.recv(uint64(i), b.sge(0, 64))
				a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(0, 64)})
			}
			end(t, a)
			w.run(1e9)
			for i := range n {
				b.want(uint64(i), ib.WCSuccess, ib.WCRecv)
			}
		}
	}
}

// A drained queue pair has executed what was posted before the request to drain.
func TestSQDExecutesWhatWasPostedBefore(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 64)})
	check(t, a.SetState(ib.QPSSQD))
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
}

// A message that was posted before the destruction of its queue pair leaves no completion behind:
// the program removes those that it finds afterwards.
func TestDestroyedQPCompletesNothingLater(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	c.ah(1, "192.0.2.2")
	q := c.ud()
	q.sendTo(1, 1, 9, 64)
	check(t, q.Destroy())
	c.cq.PollAll()
	w.run(1e6)
	c.wantNone()
}

// A program may destroy an address handle right after it has posted its last send.
func TestDestroyedAHServesPostedSends(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	a, b := w.client(d).ud(), w.client(w.nic(2)).ud()
	ah := a.ah(1, "192.0.2.2")
	for i := range 100 {
		b.recv(uint64(i), b.sge(0, 64+packet.GRHLen))
		a.sendTo(uint64(i), 1, b.QPN(), 64)
	}
	check(t, a.Context.DestroyAH(ah))
	w.run(1e6)
	for i := range 100 {
		a.want(uint64(i), ib.WCSuccess, ib.WCSend)
		b.want(uint64(i), ib.WCSuccess, ib.WCRecv)
	}
}
