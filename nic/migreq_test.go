package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A migReqCounter counts the received packets of each opcode with and without MigReq.
type migReqCounter struct {
	wire.Link
	set, clear map[packet.Opcode]int
}

func (l *migReqCounter) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for i := range batch[:n] {
		var h packet.Header
		if _, err := h.Parse(batch[i].Head); err != nil {
			continue
		}
		if h.MigReq {
			l.set[h.Opcode]++
		} else {
			l.clear[h.Opcode]++
		}
	}
	return n, err
}

// Requests and replies of all services show the path migration state that a query reports:
// migrated.
func TestPacketsShowMigratedState(t *testing.T) {
	w := newTestFabric(t)
	seen := &migReqCounter{set: map[packet.Opcode]int{}, clear: map[packet.Opcode]int{}}
	count := func(l wire.Link) wire.Link { return &migReqCounter{l, seen.set, seen.clear} }
	da, db := w.nic(1, count), w.nic(2, count)
	db.HandleMADs(func(*nic.MAD) bool { return true })
	a, b := w.client(da), w.client(db)
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		x, y := a.qpOf(kind, smallCaps), b.qpOf(kind, smallCaps)
		x.connect(1024, y)
		y.connect(1024, x)
		y.recv(1, b.sge(0, 3000))
		x.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 3000)})
		if kind == ib.QPTypeRC {
			x.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 100), RKey: b.mr.RKey()})
		}
		w.run(1e9)
	}
	x, y := a.ud(), b.ud()
	a.ah(7, "192.0.2.2")
	x.sendTo(4, 7, y.QPN(), 64)
	da.SendMAD(madBetween("192.0.2.1", "192.0.2.2", 1))
	w.run(1e9)
	if len(seen.set) < 9 || len(seen.clear) != 0 {
		t.Errorf("packets with MigReq by opcode: %v; without: %v", seen.set, seen.clear)
	}
}
