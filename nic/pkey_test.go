package nic_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
)

func TestInvalidPKeyTables(t *testing.T) {
	full := make([]uint16, 65)
	for i := range full {
		full[i] = uint16(i + 1)
	}
	for _, c := range []struct {
		keys []uint16
		ok   bool
	}{
		{nil, false},
		{[]uint16{0}, false},
		{[]uint16{0x8000}, false},
		{[]uint16{0xffff, 0xffff}, false},
		{full, false},
		{full[:64], true},
		{[]uint16{0xffff, 0x7fff}, true}, // full and limited member of one partition
		{[]uint16{0, 0, 1}, true},
	} {
		if err := nic.CheckPKeys(c.keys); (err == nil) != c.ok {
			t.Errorf("CheckPKeys(%#x): %v", c.keys, err)
		} else if err != nil {
			wantErrno(t, fmt.Sprint(c.keys), err, syscall.EINVAL)
		}
	}
}

// connectAt connects two queues, each with the P_Key at an index of its NIC's table.
func connectAt(a, b *queue, ai, bi int) {
	for _, x := range []struct {
		q, peer *queue
		index   int
	}{{a, b, ai}, {b, a, bi}} {
		at := attrs(1024, x.peer)
		at.PKeyIndex, at.Timeout, at.RetryCount = x.index, 1, 1
		x.q.connectWith(at)
	}
}

// Two ports receive from each other if they are in the same partition and not both limited members.
func TestPKeyMembershipDecidesDelivery(t *testing.T) {
	for _, c := range []struct {
		a, b     uint16
		delivers bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0xffff, true}, {0x7fff, 0x7fff, false},
		{0x8001, 0x0001, true}, {0x0001, 0x0001, false}, {0x8001, 0x8002, false}, {0x8001, 0xffff, false},
	} {
		t.Run(fmt.Sprintf("%04x and %04x", c.a, c.b), func(t *testing.T) {
			w := newTestFabric(t)
			a, b := w.client(w.nic(1)), w.client(w.nic(2))
			check(t, a.Device.SetPKeys([]uint16{0, c.a}))
			check(t, b.Device.SetPKeys([]uint16{0, 0, c.b}))
			x, y := a.qp(smallCaps), b.qp(smallCaps)
			connectAt(x, y, 1, 2)
			x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
			w.run(1e9)
			if c.delivers {
				if got := x.want(1, ib.WCSuccess, ib.WCRDMAWrite); got.PKeyIndex != 1 {
					t.Errorf("P_Key index %d in the completion", got.PKeyIndex)
				}
				return
			}
			x.want(1, ib.WCRetryExcErr, 0)
			n := b.Device.Counters().Drops[transport.DropPKey]
			if n == 0 || b.Device.QueryPort().BadPKeyCntr != uint32(n) {
				t.Errorf("%d drops, bad_pkey_cntr is %d", n, b.Device.QueryPort().BadPKeyCntr)
			}
		})
	}
}

func TestQueuePairNeedsValidPKeyIndex(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	check(t, c.Device.SetPKeys([]uint16{0x8005, 0, 0x8006}))
	q := c.qp(smallCaps)
	for _, i := range []int{-1, 1, 3, 0x10000} {
		a := nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSInit}, Port: 1, PKeyIndex: i}
		wantErrno(t, fmt.Sprint("index ", i), q.Modify(&a, toInit), syscall.EINVAL)
	}
	a := nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSInit}, Port: 1, PKeyIndex: 2}
	check(t, q.Modify(&a, toInit))
	got, err := q.Query()
	if err != nil || got.PKeyIndex != 2 || got.PKey != 0x8006 {
		t.Errorf("index %d, P_Key %#x, %v", got.PKeyIndex, got.PKey, err)
	}
	if p := c.Device.QueryPort(); p.PKeyTableLen != 3 || c.Device.Query().MaxPKeys != 64 {
		t.Errorf("table of %d entries, limit %d", p.PKeyTableLen, c.Device.Query().MaxPKeys)
	}
}

// Queue pairs use the new table, and clients get an event.
func TestPKeyTableChangeTakesEffectAtOnce(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	write := func(id uint64, want ib.WCStatus) {
		t.Helper()
		a.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		w.run(100e9)
		a.want(id, want, ib.WCRDMAWrite)
	}
	write(1, ib.WCSuccess)
	check(t, a.Device.SetPKeys([]uint16{0x8123}))
	check(t, b.Device.SetPKeys([]uint16{0x0123, packet.DefaultPKey}))
	if !a.had(ib.EventPKeyChange) || !b.had(ib.EventPKeyChange) || a.Events[0].Port != 1 {
		t.Errorf("events: %v, %v", a.Events, b.Events)
	}
	write(2, ib.WCSuccess)
	n := len(b.Events)
	check(t, b.Device.SetPKeys(b.Device.PKeys()))
	if len(b.Events) != n {
		t.Error("an event although the table did not change")
	}
	check(t, b.Device.SetPKeys([]uint16{0, packet.DefaultPKey}))
	write(3, ib.WCRetryExcErr)
	if b.Device.QueryPort().BadPKeyCntr == 0 {
		t.Error("no drop was counted")
	}
	wantErrno(t, "partition 0", b.Device.SetPKeys([]uint16{0x8000}), syscall.EINVAL)
	if got := b.Device.PKeys(); !slices.Equal(got, []uint16{0, packet.DefaultPKey}) {
		t.Errorf("after a rejected change the table is %#x", got)
	}
}

func TestPartitionZeroMatchesNothing(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	check(t, d.SetPKeys([]uint16{0x0007, 0x8009}))
	for k, want := range map[uint16]int{0x8007: 0, 0x8009: 1, 0x0009: 1, 0x0007: -1, 0: -1, 0x8000: -1, 0xffff: -1} {
		if i, ok := d.PKeyIndex(k); ok != (want >= 0) || ok && i != want {
			t.Errorf("%#04x: index %d, %v", k, i, ok)
		}
	}
}

func TestDatagramsOfAnotherPartitionAreDropped(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	a.ah(1, "192.0.2.2")
	check(t, b.Device.SetPKeys([]uint16{0x8001}))
	b.recv(1, b.sge(0, 200))
	a.sendTo(1, 1, b.QPN(), 8)
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCSend)
	b.wantNone()
	if n := b.Device.Counters().Drops[transport.DropPKey]; n != 1 {
		t.Errorf("%d drops", n)
	}
}

// Each packet of a message counts, although a fabric passes them as one frame.
func TestEachPacketOfALongMessageViolatesThePKey(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x, y := a.qp(smallCaps), b.qp(smallCaps)
	x.connect(1024, y)
	y.connect(1024, x)
	check(t, b.Device.SetPKeys([]uint16{0x8001}))
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 16<<10)})
	w.steps(3)
	if n := b.Device.QueryPort().BadPKeyCntr; n != 16 {
		t.Errorf("bad_pkey_cntr is %d after 16 packets", n)
	}
}
