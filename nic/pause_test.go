package nic_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// A pausedLink is paused for some priorities.
type pausedLink struct {
	wire.Link
	paused     uint8
	pauseAfter int                       // frames of priority 3 until it is paused for them; 0: it is not
	sent       map[uint8][]packet.Header // of the frames, by priority
}

func (l *pausedLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.PFC = true
	return c
}

func (l *pausedLink) Paused() uint8 { return l.paused }

// Send takes frames up to the first one of a paused priority.
func (l *pausedLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	n := 0
	for ; n < len(batch) && l.paused>>batch[n].Path.SwitchPriority()&1 == 0; n++ {
		if batch[n].Path.SwitchPriority() == 3 && l.pauseAfter > 0 {
			if l.pauseAfter--; l.pauseAfter == 0 {
				l.paused = 1 << 3
			}
		}
	}
	n, err := l.Link.Send(now, batch[:n])
	for i := range batch[:n] {
		var h packet.Header
		if _, err := h.Parse(batch[i].Head[:batch[i].HeadLen]); err != nil {
			panic(err)
		}
		p := batch[i].Path.SwitchPriority()
		l.sent[p] = append(l.sent[p], h)
	}
	return n, err
}

// pausable returns programs on two NICs, and the link of the first.
func pausable(t *testing.T) (a, b *client, link *pausedLink) {
	return pausableBehind(t, func(l wire.Link) wire.Link { return l })
}

// pausableBehind is pausable with middleware between the first NIC and its link.
func pausableBehind(t *testing.T, wrap func(wire.Link) wire.Link) (a, b *client, link *pausedLink) {
	w := newTestFabric(t)
	link = &pausedLink{sent: map[uint8][]packet.Header{}}
	a = w.client(w.nic(1, func(l wire.Link) wire.Link { link.Link = l; return wrap(link) }))
	return a, w.client(w.nic(2)), link
}

// connectAtPriority connects two queue pairs of a priority.
func connectAtPriority(a, b *queue, priority uint8) {
	for _, end := range [][2]*queue{{a, b}, {b, a}} {
		at := attrs(1024, end[1])
		at.AV.TClass = priority << 5
		end[0].connectWith(at)
	}
}

// pairAt makes two connected queue pairs of a priority.
func pairAt(a, b *client, priority uint8) (qa, qb *queue) {
	qa, qb = a.qp(smallCaps), b.qp(smallCaps)
	connectAtPriority(qa, qb, priority)
	return qa, qb
}

// completed counts the completions of queue pairs, which must be successful.
func completed(t *testing.T, c *client) map[uint32]int {
	t.Helper()
	n := map[uint32]int{}
	for {
		w, ok := c.cq.Poll()
		if !ok {
			return n
		}
		if w.Status != ib.WCSuccess {
			t.Fatalf("completion %d of queue pair %#x: %v", w.WRID, w.QPN, w.Status)
		}
		n[w.QPN]++
	}
}

// While priority 3 is paused, priority 0 goes on, on queue pairs of the same client, also behind
// middleware that queues packets. What was posted at priority 3 waits without a loss, and arrives
// when the pause ends.
func TestPausedPriorityDoesNotBlockOthers(t *testing.T) {
	rules := func(text string) func(wire.Link) wire.Link {
		p, err := fault.Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return func(l wire.Link) wire.Link { return wire.NewFaultLink(l, p) }
	}
	for name, wrap := range map[string]func(wire.Link) wire.Link{
		"link":  func(l wire.Link) wire.Link { return l },
		"rule":  rules("drop nth 1000000"),
		"delay": rules("delay 10us"),
		"cable": func(l wire.Link) wire.Link { return wire.NewShapedLink(l, wire.Shape{Delay: 10 * time.Microsecond}) },
	} {
		t.Run(name, func(t *testing.T) { pauseOnePriority(t, wrap) })
	}
}

func pauseOnePriority(t *testing.T, wrap func(wire.Link) wire.Link) {
	a, b, link := pausableBehind(t, wrap)
	q3, b3 := pairAt(a, b, 3)
	q0, b0 := pairAt(a, b, 0)
	fill(a.mem[:64<<10], 3)
	link.pauseAfter = 5
	q3.write(b3, 20)
	q0.write(b0, 1)
	for range 10 {
		q0.write(b0, 10)
		q3.write(b3, 10)
		a.run(1e6)
	}
	a.run(int64(40 * time.Millisecond)) // shorter than the local ACK timeout, longer than a link may stall
	if n := len(link.sent[3]); n != 5 {
		t.Errorf("%d frames of the paused priority were sent, want 5", n)
	}
	during := completed(t, a)
	if n := during[q0.QPN()]; n != 101 {
		t.Errorf("%d WRITEs of the other priority completed, want 101", n)
	}
	link.paused = 0
	a.run(int64(time.Millisecond))
	left := during[q3.QPN()] + completed(t, a)[q3.QPN()]
	if c := a.Device.Counters(); left != 120 || c.TxStalled != 0 || c.LocalACKTimeout != 0 || c.Retransmitted != 0 {
		t.Errorf("%d WRITEs completed after the pause; %d frames discarded, %d timeouts, %d retransmitted",
			left, c.TxStalled, c.LocalACKTimeout, c.Retransmitted)
	}
	if !bytes.Equal(b.mem[:64<<10], a.mem[:64<<10]) {
		t.Error("the WRITEs have other contents")
	}
}

// After a pause of any length nothing was discarded. A retransmission waits for its end, too, so
// that no queue pair runs out of retries.
func TestLongPauseDiscardsNothing(t *testing.T) {
	for _, timeout := range []uint8{0, 14} {
		a, b, link := pausable(t)
		qa, qb := a.qp(smallCaps), b.qp(smallCaps)
		for _, end := range [][2]*queue{{qa, qb}, {qb, qa}} {
			at := attrs(1024, end[1])
			at.AV.TClass, at.Timeout = 3<<5, timeout
			end[0].connectWith(at)
		}
		qa.write(qb, 30)
		a.step()
		link.pauseAfter = 7
		qa.write(qb, 30)
		a.run(int64(10 * time.Second))
		link.paused = 0
		a.run(int64(time.Second))
		done := completed(t, a)[qa.QPN()]
		if c := a.Device.Counters(); done != 60 || c.TxStalled != 0 || timeout == 0 && c.Retransmitted != 0 {
			t.Errorf("timeout %d: %d WRITEs completed, %d frames discarded, %d retransmitted", timeout, done, c.TxStalled, c.Retransmitted)
		}
	}
}

// Replies of a paused priority wait, READ responses in their order among ACKs. Those of others do
// not.
func TestPausedRepliesWait(t *testing.T) {
	a, b, link := pausable(t)
	a3, b3 := pairAt(a, b, 3)
	a0, b0 := pairAt(a, b, 0)
	request := func(q, peer *queue) {
		for i := range 10 {
			op := []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite}[i%2]
			q.store(&transport.SendWR{Opcode: op, RKey: peer.mr.RKey(), RemoteAddr: 1 << 20, SGEs: q.sge(0, 8<<10)})
		}
		q.Publish()
	}
	request(b3, a3)
	a.step()
	first := completed(t, b)[b3.QPN()]
	link.pauseAfter = 20 // some READ responses meet the pause in the link, others in the NIC
	request(b3, a3)
	request(b3, a3)
	request(b0, a0)
	a.run(1e6)
	b3.write(a3, 1) // whose ACK may overtake nothing
	a0.write(b0, 20)
	a.run(1e6)
	n := completed(t, b)
	if first != 10 || n[b0.QPN()] != 10 || n[b3.QPN()] == 21 {
		t.Fatalf("%d requests of priority 3 completed before the pause and %d in it, %d of priority 0", first, n[b3.QPN()], n[b0.QPN()])
	}
	link.paused = 0
	a.run(1e6)
	if left := completed(t, b)[b3.QPN()]; n[b3.QPN()]+left != 21 {
		t.Errorf("%d requests of priority 3 completed after the pause", left)
	}
	for i, h := range link.sent[3] {
		if i > 0 && (h.PSN-link.sent[3][i-1].PSN)&packet.PSNMask > 1<<22 {
			t.Errorf("a reply for PSN %d follows one for %d", h.PSN, link.sent[3][i-1].PSN)
		}
	}
	link.paused = 1 << 3
	b3.write(a3, 3)
	a.run(1e6)
	if n := completed(t, b)[b3.QPN()]; n != 0 {
		t.Errorf("%d ACKs of the paused priority", n)
	}
	link.paused = 0
	a.run(1e6)
	if n := completed(t, b)[b3.QPN()]; n != 3 {
		t.Errorf("%d WRITEs completed after the pause, want 3", n)
	}
	if c := b.Device.Counters(); c.Retransmitted != 0 || a.Device.Counters().TxStalled != 0 {
		t.Errorf("%d packets retransmitted", c.Retransmitted)
	}
}

// When a pause ends, replies leave before what has waited in the link's place.
func TestRepliesOvertakeBacklog(t *testing.T) {
	a, b, link := pausable(t)
	requester, to := pairAt(a, b, 3)
	responder, from := pairAt(a, b, 3)
	link.pauseAfter = 5
	requester.write(to, 20)
	a.run(1e6)
	from.write(responder, 1)
	a.run(1e6)
	link.paused = 0
	a.run(1e6)
	if n := len(link.sent[3]); n != 20*64+1 || link.sent[3][5].Opcode != packet.Acknowledge {
		t.Errorf("%d frames sent, the first after the pause is %v", n, link.sent[3][min(5, n-1)].Opcode)
	}
}

// What waits for a pause has the contents of the memory when it was emitted.
func TestPausedFramesKeepTheirContents(t *testing.T) {
	a, b, link := pausable(t)
	qa, qb := pairAt(a, b, 3)
	fill(a.mem[:64<<10], 3)
	want := bytes.Clone(a.mem[:64<<10])
	link.pauseAfter = 5
	qb.store(&transport.SendWR{Opcode: ib.WRRDMARead, RKey: qa.mr.RKey(), SGEs: qb.sge(0, len(want))})
	qb.Publish()
	a.run(1e6)
	clear(a.mem[:len(want)])
	link.paused = 0
	a.run(1e6)
	if n := completed(t, b)[qb.QPN()]; n != 1 || !bytes.Equal(b.mem[:20<<10], want[:20<<10]) {
		t.Errorf("%d READs completed, with the contents after the pause", n)
	}
}

// READ responses that wait for a pause are discarded when the requester asks for them again.
func TestPausedResponsesAreSentOnce(t *testing.T) {
	a, b, link := pausable(t)
	qa, qb := pairAt(a, b, 3)
	link.pauseAfter = 5
	qb.store(&transport.SendWR{Opcode: ib.WRRDMARead, RKey: qa.mr.RKey(), SGEs: qb.sge(0, 16<<10)})
	qb.Publish()
	a.run(int64(200 * time.Millisecond)) // longer than the local ACK timeout
	link.paused = 0
	a.run(1e6)
	if n, retries := len(link.sent[3]), b.Device.Counters().LocalACKTimeout; n > 5+16 || retries == 0 {
		t.Errorf("%d responses to a READ of 16 packets, of which 5 were sent before the pause; %d timeouts", n, retries)
	}
	if n := completed(t, b)[qb.QPN()]; n != 1 {
		t.Errorf("%d READs completed", n)
	}
}

// A CNP of a paused priority waits. In a long pause there is no more than one of a queue pair, and
// replies of other priorities go on.
func TestPausedCNPsWait(t *testing.T) {
	a, b, link := pausable(t)
	qa, qb := a.qp(smallCaps), b.qp(smallCaps)
	qa.connect(1024, qb)
	marked := attrs(1024, qa)
	marked.AV.TClass = 3
	qb.connectWith(marked)
	params := a.Device.Congestion()
	priority := uint8(params.CNPDSCP >> 3)
	link.paused = 1 << priority
	for range 50 {
		qb.write(qa, 10)
		a.run(1e6)
	}
	if n, c := completed(t, b)[qb.QPN()], a.Device.Counters(); n != 500 || c.RxECNMarked == 0 || len(link.sent[priority]) != 0 {
		t.Errorf("in the pause: %d WRITEs completed, %d marks, %d CNPs", n, c.RxECNMarked, len(link.sent[priority]))
	}
	link.paused = 0
	a.run(1e6)
	if l := link.sent[priority]; len(l) != 1 || l[0].Opcode != packet.OpcodeCNP || b.Device.Counters().CNPHandled != 1 {
		t.Errorf("after the pause: %d CNPs, want 1", len(l))
	}
}

// A queue pair of a paused priority can fail, and be destroyed, at once.
func TestPauseDelaysNoControlOperation(t *testing.T) {
	a, b, link := pausable(t)
	caps := smallCaps
	caps.MaxRecvWR = 4096 // more than one turn flushes
	q, qb := a.qp(caps), b.qp(smallCaps)
	connectAtPriority(q, qb, 3)
	q.write(qb, 5)
	a.step()
	completed(t, a)
	link.pauseAfter = 5
	q.write(qb, 20)
	a.run(1e6)
	q.write(qb, 10)
	for i := range 900 {
		q.recv(uint64(i), nil)
	}
	check(t, a.Context.ModifyQP(q.QP.QP, &nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSErr}}, ib.QPMaskState))
	a.run(1e6)
	flushed := 0
	for w, ok := a.cq.Poll(); ok; w, ok = a.cq.Poll() {
		if w.Status == ib.WCWRFlushErr {
			flushed++
		}
	}
	if flushed != 930 {
		t.Errorf("%d work requests flushed, want 930", flushed)
	}
	check(t, a.Context.DestroyQP(q.QP.QP))
	other, _ := pairAt(a, b, 3)
	other.write(qb, 1)
	a.run(1e6)
	check(t, a.Context.DestroyQP(other.QP.QP))
	before := len(link.sent[3])
	link.paused = 0
	a.run(1e6)
	if len(link.sent[3]) == before {
		t.Error("what had left the queue pair was discarded")
	}
}

// Datagrams and management datagrams of a paused priority wait, and do not block others.
func TestPausedDatagramsWait(t *testing.T) {
	a, b, link := pausable(t)
	received := map[uint8]int{}
	b.Device.HandleMADs(func(m *nic.MAD) bool { received[m.Path.TClass>>5]++; return true })
	q3, q0, to := a.ud(), a.ud(), b.ud()
	for i, tclass := range []uint8{3 << 5, 0} {
		av := nic.AddressVector{DGID: b.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1, TClass: tclass}
		var err error
		av.Path, err = a.Device.ResolvePath(t.Context(), &av)
		check(t, err)
		_, err = a.Context.CreateAH(a.pd, uint32(i+1), av)
		check(t, err)
	}
	for i := range 20 {
		to.recv(uint64(i), to.sge(1<<20, 2048))
	}
	send := func() {
		q3.sendTo(1, 1, to.QPN(), 100)
		q3.sendTo(2, 2, to.QPN(), 100) // behind it
		q0.sendTo(3, 2, to.QPN(), 100)
		for _, priority := range []uint8{3, 0} {
			m := madBetween("192.0.2.1", "192.0.2.2", 0)
			m.Path.TClass = priority << 5
			a.Device.SendMAD(m)
		}
	}
	link.pauseAfter = 1 // the datagram of q3 meets the pause in the link
	send()
	a.run(1e6)
	send()
	a.run(int64(time.Second))
	if n, m := completed(t, b)[to.QPN()], received[0]; n != 3 || m != 2 || received[3] != 1 {
		t.Errorf("in the pause: %d datagrams received, want 3; management datagrams of priority 0: %d of 2, of priority 3: %d, want 1", n, m, received[3])
	}
	link.paused = 0
	a.run(1e6)
	if n := completed(t, b)[to.QPN()]; n != 3 || received[3] != 2 || a.Device.Counters().TxStalled != 0 {
		t.Errorf("after the pause: %d datagrams received, want 3; %d management datagrams", n, received[3])
	}
}

// The management datagrams that wait for a pause are bounded.
func TestPausedMADsAreBounded(t *testing.T) {
	a, _, link := pausable(t)
	link.paused = 1 << 3
	for range 50 {
		for range 100 {
			m := madBetween("192.0.2.1", "192.0.2.2", 0)
			m.Path.TClass = 3 << 5
			a.Device.SendMAD(m)
		}
		a.step()
	}
	if n := a.Device.Counters().TxStalled; n != 5000-1024 {
		t.Errorf("%d discarded, want %d", n, 5000-1024)
	}
}
