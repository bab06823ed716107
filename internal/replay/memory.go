package replay

// A shadow is a responder's memory as far as the capture tells what is in it. It is sparse:
// a request of 2 GiB costs nothing until its bytes are seen.
type shadow struct {
	pages   map[uint64]*page
	lent    *ledger
	settled bool // it is known altogether: nothing is to be learned

	// learned, if not nil, hears of bytes that learn changed: those of which nothing was known are fresh.
	learned func(addr uint64, b byte, fresh bool)
}

// A ledger has what the shadows of a replay have lent.
type ledger []loan

// pageBytes is the grain of a shadow.
const pageBytes = 1024

type page struct {
	data  [pageBytes]byte
	since [pageBytes]int32 // the place in the capture, plus 1, of what told the byte; 0: nothing has
}

// A loan is bytes that a View was given. Views of a shadow are copies: those that were
// written to come back by settle.
type loan struct {
	from *shadow
	addr uint64
	b    []byte
}

// settle takes what was written to lent bytes into the memory.
func (l *ledger) settle() {
	for _, n := range *l {
		n.from.each(n.addr, len(n.b), func(p *page, at, from, k int) { copy(p.data[at:at+k], n.b[from:]) })
	}
	l.forget()
}

// forget ends the loans, which were only read.
func (l *ledger) forget() {
	clear(*l)
	*l = (*l)[:0]
}

func newShadow(l *ledger) *shadow { return &shadow{pages: map[uint64]*page{}, lent: l} }

func (m *shadow) page(addr uint64) *page {
	p := m.pages[addr/pageBytes]
	if p == nil {
		p = new(page)
		m.pages[addr/pageBytes] = p
	}
	return p
}

// each calls f for each piece of a range that lies in one page.
func (m *shadow) each(addr uint64, n int, f func(p *page, at, from, n int)) {
	for from := 0; from < n; {
		at := int(addr % pageBytes)
		k := min(pageBytes-at, n-from)
		f(m.page(addr), at, from, k)
		addr += uint64(k)
		from += k
	}
}

// lend returns a copy of n bytes, which settle writes back.
func (m *shadow) lend(addr uint64, n int) []byte {
	b := make([]byte, n)
	for from := 0; from < n; {
		at := int((addr + uint64(from)) % pageBytes)
		k := min(pageBytes-at, n-from)
		if p := m.pages[(addr+uint64(from))/pageBytes]; p != nil {
			copy(b[from:from+k], p.data[at:])
		}
		from += k
	}
	*m.lent = append(*m.lent, loan{m, addr, b})
	return b
}

// know notes that the capture told a range at place at, and that the bytes there are right.
func (m *shadow) know(addr uint64, n, at int) {
	m.each(addr, n, func(p *page, i, _, n int) {
		for k := range n {
			p.since[i+k] = int32(at + 1)
		}
	})
}

// doubt notes that nothing is known of a range.
func (m *shadow) doubt(addr uint64, n int) { m.know(addr, n, -1) }

// learn takes b, which a reply at place at shows, for what is in memory: where nothing was
// known, and where free says that something else may have changed it since. It returns how
// many bytes were changed so.
func (m *shadow) learn(addr uint64, b []byte, at int, free func(since int) bool) (changed int) {
	if m.settled {
		return 0
	}
	m.each(addr, len(b), func(p *page, i, from, n int) {
		for k := range n {
			have, since := &p.data[i+k], &p.since[i+k]
			switch {
			case *have == b[from+k]:
			case *since == 0:
				m.tell(addr+uint64(from+k), b[from+k], true)
			case free(int(*since) - 1):
				changed++
				m.tell(addr+uint64(from+k), b[from+k], false)
			default:
				continue
			}
			*have, *since = b[from+k], int32(at+1)
		}
	})
	return changed
}

func (m *shadow) tell(addr uint64, b byte, fresh bool) {
	if m.learned != nil {
		m.learned(addr, b, fresh)
	}
}

// write puts bytes into the memory.
func (m *shadow) write(addr uint64, b []byte) {
	m.each(addr, len(b), func(p *page, at, from, n int) { copy(p.data[at:at+n], b[from:]) })
}

// A window is a region of a shadow, as mrtable.Memory.
type window struct {
	*shadow
	base, length uint64
}

// maxView bounds a View. The transport reads at most 64 KiB at once.
const maxView = 1 << 20

func (w *window) Len() uint64 { return w.length }

func (w *window) View(off uint64, n int) []byte {
	if n < 0 || n > maxView || off > w.length || uint64(n) > w.length-off {
		return nil
	}
	return w.lend(w.base+off, n)
}

func (w *window) Close() error { return nil }

// A sink is memory of any length in which everything lies in the same place: for data that
// nobody looks at.
type sink struct{ b []byte }

// sinkLength is more than the longest message.
const sinkLength = 1<<32 - 1

// sinkBytes is as much as the transport moves at once.
const sinkBytes = 1 << 16

func (s *sink) Len() uint64 { return sinkLength }

func (s *sink) View(off uint64, n int) []byte {
	if n < 0 || n > sinkBytes || off > sinkLength || uint64(n) > sinkLength-off {
		return nil
	}
	if len(s.b) < n {
		s.b = make([]byte, sinkBytes)
	}
	if n == 0 {
		return []byte{}
	}
	return s.b[:n:n]
}

func (s *sink) Close() error { return nil }
