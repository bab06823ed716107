package nic

// A qpTable maps QPNs to queue pairs in two levels: 4096 pages of 4096 entries. A page exists while
// it has queue pairs.
type qpTable struct {
	pages [1 << 12]*qpPage
	empty *qpPage // the page that became empty last, for the next one that is needed
	last  uint32  // allocated most recently
	n     int
}

type qpPage struct {
	qps [1 << 12]*QP
	n   int
}

func (t *qpTable) init() { t.last = firstQPN - 1 }

func (t *qpTable) get(qpn uint32) *QP {
	p := t.pages[qpn>>12&0xfff]
	if p == nil {
		return nil
	}
	return p.qps[qpn&0xfff]
}

// recentQPs are queue pairs that a slice has received packets for, by the low bits of their
// numbers. What a NIC receives is often for the same few, and the table is large.
type recentQPs [4]*QP

// lookUp returns the queue pair of a number, nil if there is none.
func (d *Device) lookUp(qpn uint32) *QP {
	r := &d.recent[qpn%uint32(len(d.recent))]
	if *r == nil || (*r).qpn != qpn {
		q := d.qps.get(qpn)
		if q == nil {
			return nil
		}
		*r = q
	}
	return *r
}

// forgetRecent makes sure that lookUp does not find q, which is being destroyed.
func (d *whole) forgetRecent(q *QP) {
	for _, s := range d.slices {
		if r := &s.recent[q.qpn%uint32(len(s.recent))]; *r == q {
			*r = nil
		}
	}
}

// allocate returns a free QPN. It reuses QPNs as late as possible: a delayed packet for a destroyed
// queue pair should find none.
func (t *qpTable) allocate() (uint32, bool) {
	if t.n > lastQPN-firstQPN {
		return 0, false
	}
	for {
		if t.last++; t.last > lastQPN {
			t.last = firstQPN
		}
		if t.get(t.last) == nil {
			return t.last, true
		}
	}
}

func (t *qpTable) put(qpn uint32, q *QP) {
	p := t.pages[qpn>>12]
	if p == nil {
		if p, t.empty = t.empty, nil; p == nil {
			p = new(qpPage)
		}
		t.pages[qpn>>12] = p
	}
	p.qps[qpn&0xfff] = q
	p.n++
	t.n++
}

func (t *qpTable) remove(qpn uint32) {
	p := t.pages[qpn>>12]
	p.qps[qpn&0xfff] = nil
	t.n--
	if p.n--; p.n == 0 {
		t.pages[qpn>>12], t.empty = nil, p
	}
}
