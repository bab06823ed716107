package replay

import "softroce/internal/conversation"

// A sparseMemory is a responder's memory, as far as the capture shows its content. A request of 2
// GiB costs nothing until its bytes are seen.
type sparseMemory struct {
	pages map[uint64]*page
	views *views
	fixed bool // the content is known, and learn changes nothing

	// onLearn, if not nil, is called for each byte that learn changes. fresh says that it was
	// unknown before.
	onLearn func(addr uint64, b byte, fresh bool)
}

// views are the copies of memory that are in use.
type views []view

// pageBytes is the unit of allocation: small, so that packets with few bytes each cost little.
const pageBytes = 64

type page struct {
	data  [pageBytes]byte
	since [pageBytes]int32 // index in the capture, plus 1, of the packet that shows the byte; 0: unknown
}

// A view is a copy of memory that View returned. writeBack copies it back.
type view struct {
	from *sparseMemory
	addr uint64
	b    []byte
}

// writeBack copies the views back, which may have been written, and releases them. Zeros where
// nothing is known change nothing.
func (l *views) writeBack() {
	for _, n := range *l {
		n.from.eachOf(n.addr, len(n.b), func(from, k int) bool { return !isZero(n.b[from : from+k]) },
			func(p *page, at, from, k int) { copy(p.data[at:at+k], n.b[from:]) })
	}
	l.release()
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// release ends the views, which were only read.
func (l *views) release() {
	clear(*l)
	*l = (*l)[:0]
}

func newShadow(l *views) *sparseMemory { return &sparseMemory{pages: map[uint64]*page{}, views: l} }

func (m *sparseMemory) page(addr uint64) *page {
	p := m.pages[addr/pageBytes]
	if p == nil {
		p = new(page)
		m.pages[addr/pageBytes] = p
	}
	return p
}

// each calls f for each part of a range that lies in one page.
func (m *sparseMemory) each(addr uint64, n int, f func(p *page, at, from, n int)) {
	m.eachOf(addr, n, func(int, int) bool { return true }, f)
}

// eachOf is each that leaves out parts without a page for which needed returns false.
func (m *sparseMemory) eachOf(addr uint64, n int, needed func(from, n int) bool, f func(p *page, at, from, n int)) {
	for from := 0; from < n; {
		at := int(addr % pageBytes)
		k := min(pageBytes-at, n-from)
		if m.pages[addr/pageBytes] != nil || needed(from, k) {
			f(m.page(addr), at, from, k)
		}
		addr += uint64(k)
		from += k
	}
}

// copyOut returns a copy of n bytes, which is a view.
func (m *sparseMemory) copyOut(addr uint64, n int) []byte {
	b := make([]byte, n)
	for from := 0; from < n; {
		at := int((addr + uint64(from)) % pageBytes)
		k := min(pageBytes-at, n-from)
		if p := m.pages[(addr+uint64(from))/pageBytes]; p != nil {
			copy(b[from:from+k], p.data[at:])
		}
		from += k
	}
	*m.views = append(*m.views, view{m, addr, b})
	return b
}

// markKnown records that the packet at an index shows the content of a range, which is right.
func (m *sparseMemory) markKnown(addr uint64, n, at int) {
	m.each(addr, n, func(p *page, i, _, n int) {
		for k := range n {
			p.since[i+k] = int32(at + 1)
		}
	})
}

// markUnknown records that the content of a range is unknown.
func (m *sparseMemory) markUnknown(addr uint64, n int) {
	m.eachOf(addr, n, func(int, int) bool { return false }, func(p *page, i, _, n int) { clear(p.since[i : i+n]) })
}

// markWritten records that a request has written its payload, as far as the capture has it.
func (m *sparseMemory) markWritten(addr uint64, e *conversation.Transmission) {
	n := len(e.CapturedPayload())
	m.markKnown(addr, n, e.Index)
	m.markUnknown(addr+uint64(n), len(e.Payload)-n)
}

// learn sets memory to b, which the reply at an index shows, where the content was unknown, or may
// have changed since, as free reports. It returns the number of known bytes that changed.
func (m *sparseMemory) learn(addr uint64, b []byte, at int, free func(since int) bool) (changed int) {
	if m.fixed {
		return 0
	}
	m.each(addr, len(b), func(p *page, i, from, n int) {
		for k := range n {
			have, since := &p.data[i+k], &p.since[i+k]
			switch {
			case *have == b[from+k]:
			case *since == 0:
				m.notify(addr+uint64(from+k), b[from+k], true)
			case free(int(*since) - 1):
				changed++
				m.notify(addr+uint64(from+k), b[from+k], false)
			default:
				continue
			}
			*have, *since = b[from+k], int32(at+1)
		}
	})
	return changed
}

func (m *sparseMemory) notify(addr uint64, b byte, fresh bool) {
	if m.onLearn != nil {
		m.onLearn(addr, b, fresh)
	}
}

// write puts bytes into the memory.
func (m *sparseMemory) write(addr uint64, b []byte) {
	m.each(addr, len(b), func(p *page, at, from, n int) { copy(p.data[at:at+n], b[from:]) })
}

// A memoryRange is a region of a sparseMemory. It implements mrtable.Memory.
type memoryRange struct {
	*sparseMemory
	base, length uint64
}

// maxView bounds a View. The transport reads at most 64 KiB at once.
const maxView = 1 << 20

func (w *memoryRange) Len() uint64 { return w.length }

func (w *memoryRange) View(off uint64, n int) []byte {
	if n < 0 || n > maxView || off > w.length || uint64(n) > w.length-off {
		return nil
	}
	return w.copyOut(w.base+off, n)
}

func (w *memoryRange) Close() error { return nil }

// A discardMemory is a region of any length that keeps nothing: all offsets share the same bytes.
type discardMemory struct{ b []byte }

// discardLength exceeds the longest message.
const discardLength = 1<<32 - 1

// maxDiscardView is the most that the transport accesses at once.
const maxDiscardView = 1 << 16

func (s *discardMemory) Len() uint64 { return discardLength }

func (s *discardMemory) View(off uint64, n int) []byte {
	if n < 0 || n > maxDiscardView || off > discardLength || uint64(n) > discardLength-off {
		return nil
	}
	if len(s.b) < n {
		s.b = make([]byte, maxDiscardView)
	}
	if n == 0 {
		return []byte{}
	}
	return s.b[:n:n]
}

func (s *discardMemory) Close() error { return nil }
