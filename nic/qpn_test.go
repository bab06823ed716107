package nic

import "testing"

// A client that creates and destroys its only queue pair does not make the engine allocate a page
// of the table each time.
func TestEmptyPageOfQPNsIsUsedAgain(t *testing.T) {
	var table qpTable
	table.init()
	q := &QP{}
	for range 2 * len(qpPage{}.qps) {
		qpn, ok := table.allocate()
		if !ok {
			t.Fatal("no QPN")
		}
		table.put(qpn, q)
		page := table.pages[qpn>>12]
		if table.get(qpn) != q || page.n != 1 {
			t.Fatalf("QPN %d: %p of %d, want %p alone", qpn, table.get(qpn), page.n, q)
		}
		table.remove(qpn)
		if table.get(qpn) != nil || table.empty != page {
			t.Fatalf("QPN %d: %p is left, the page %p is not kept", qpn, table.get(qpn), page)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		qpn, _ := table.allocate()
		table.put(qpn, q)
		table.remove(qpn)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
