package transport

import (
	"encoding/binary"
	"errors"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A scatter is a position in a scatter/gather list for incoming data.
type scatter struct {
	pd     *mrtable.PD // in which the L_Keys are valid
	sges   []SGE
	i      int
	off    uint32          // offset in sges[i]
	region *mrtable.Region // region of sges[i], nil if not looked up yet
}

// begin sets s to byte pos of the list.
func (s *scatter) begin(pd *mrtable.PD, sges []SGE, pos uint32) {
	*s = scatter{pd: pd, sges: sges, off: pos}
	for s.i < len(sges) && s.off >= sges[s.i].Length {
		s.off -= sges[s.i].Length
		s.i++
	}
}

// write writes the payload on behalf of by and advances. last marks the end of the message. The
// status is WCSuccess, WCLocLenErr if the list is too short (then nothing is written), or
// WCLocProtErr.
func (s *scatter) write(e *Env, by *Writer, payload [][]byte, n int, last bool) ib.WCStatus {
	if st := s.check(e, n); st != ib.WCSuccess {
		return st
	}
	for k, p := range payload {
		lastPiece := last && k == len(payload)-1
		for len(p) > 0 {
			g := &s.sges[s.i]
			m := min(uint32(len(p)), g.Length-s.off)
			if m == 0 {
				s.next()
				continue
			}
			if !s.lookup(e) {
				return ib.WCLocProtErr
			}
			e.Mem.Write(by, s.region, g.Addr+uint64(s.off), p[:m], lastPiece && int(m) == len(p))
			s.off += m
			p = p[m:]
		}
	}
	return ib.WCSuccess
}

func (s *scatter) next() { s.i, s.off, s.region = s.i+1, 0, nil }

// lookup finds the region of the current element, unless the one it found before is still live.
func (s *scatter) lookup(e *Env) bool {
	if s.region != nil && s.region.Live() {
		return true
	}
	g := &s.sges[s.i]
	r, err := e.Table.Local(s.pd, g.LKey, g.Addr, g.Length, ib.AccessLocalWrite)
	s.region = r
	return err == nil
}

// check checks that the next n bytes fit and are writable, before the first is written.
func (s *scatter) check(e *Env, n int) ib.WCStatus {
	if n == 0 {
		return ib.WCSuccess
	}
	if s.i < len(s.sges) && uint32(n) <= s.sges[s.i].Length-s.off && s.region != nil && s.region.Live() {
		return ib.WCSuccess // fast path: inside an element that was checked before
	}
	probe := *s
	for n > 0 {
		if probe.i >= len(probe.sges) {
			return ib.WCLocLenErr
		}
		room := probe.sges[probe.i].Length - probe.off
		if room > 0 && !probe.lookup(e) {
			return ib.WCLocProtErr
		}
		n -= int(min(room, uint32(n)))
		probe.next()
	}
	return ib.WCSuccess
}

// listLength returns the total length of a scatter/gather list.
func listLength(sges []SGE) (n uint64) {
	for _, g := range sges {
		n += uint64(g.Length)
	}
	return n
}

// A gather is a position in an outgoing message. chunk holds bytes read ahead; it is valid during
// one Transmit only.
type gather struct {
	w     *wqe
	ssn   uint64 // SSN of w, to detect that the slot was reused
	pos   uint32 // offset in the message
	i     int
	off   uint32 // offset in w.SGEs[i]
	chunk []byte
}

// seek sets g to byte pos of w.
func (g *gather) seek(w *wqe, pos uint32) {
	if g.w == w && g.ssn == w.ssn && g.pos == pos {
		return
	}
	*g = gather{w: w, ssn: w.ssn, pos: pos, off: pos}
	for g.i < len(w.SGEs) && g.off >= w.SGEs[g.i].Length {
		g.off -= w.SGEs[g.i].Length
		g.i++
	}
}

// errNoRoom reports that nothing was read because it could not be sent in this step.
var errNoRoom = errors.New("no room to send")

// isTransient reports whether a read failed for a reason that ends with this step.
func isTransient(err error) bool { return err == errNoRoom || errors.Is(err, mrtable.ErrArena) }

// fetchLimit returns how many bytes of a message to read at once: what can be sent in this step,
// since the rest would have to be read again.
func (q *QP) fetchLimit(e *Env, packets uint64) uint32 {
	packets = min(packets, uint64(e.Sink.Room(q)))
	return uint32(min(maxRead, packets*uint64(q.attr.PathMTU)))
}

// take appends the next n bytes to segs. It returns the errors of mrtable, or errNoRoom.
func (g *gather) take(e *Env, q *QP, n uint32, segs [][]byte) ([][]byte, error) {
	if g.w.Flags&ib.SendInline != 0 {
		segs = append(segs, g.w.Inline[g.pos:g.pos+n])
		g.pos += n
		return segs, nil
	}
	for n > 0 {
		if len(g.chunk) == 0 {
			if err := g.fetch(e, q); err != nil {
				return segs, err
			}
			continue
		}
		m := min(n, uint32(len(g.chunk)))
		segs = append(segs, g.chunk[:m:m])
		g.chunk = g.chunk[m:]
		g.pos += m
		g.off += m
		n -= m
	}
	return segs, nil
}

// fetch reads more of the current element, or moves to the next one.
func (g *gather) fetch(e *Env, q *QP) error {
	s := &g.w.SGEs[g.i]
	if g.off == s.Length {
		g.i, g.off = g.i+1, 0
		return nil
	}
	n := min(s.Length-g.off, q.fetchLimit(e, max(1, q.req.windowLeft())))
	if n == 0 {
		return errNoRoom
	}
	addr := s.Addr + uint64(g.off)
	r, err := e.Table.Local(q.cfg.PD, s.LKey, addr, n, 0)
	if err != nil {
		return err
	}
	if r.InPlace() {
		g.chunk, err = e.Mem.Read(r, addr, int(n))
		return err
	}
	var ok bool
	if g.chunk, ok, err = q.req.ahead.take(r, addr); !ok {
		return q.readRequests(e, g.w)
	}
	return err
}

// checkLocal checks every element of w before the first byte is sent. The buffer of a READ or
// atomic is checked when the response arrives: the peer executes the request in any case.
func (q *QP) checkLocal(e *Env, w *wqe) ib.WCStatus {
	if w.ownResponse && w.kind != packet.KindAtomicWrite {
		return ib.WCSuccess
	}
	for i := range w.SGEs {
		g := &w.SGEs[i]
		if g.Length == 0 {
			continue
		}
		if _, err := e.Table.Local(q.cfg.PD, g.LKey, g.Addr, g.Length, 0); err != nil {
			return ib.WCLocProtErr
		}
	}
	return ib.WCSuccess
}

// storeOriginal writes the value that an atomic returned to the requester's buffer, in native byte
// order.
func (q *QP) storeOriginal(e *Env, w *wqe, v uint64) ib.WCStatus {
	b := w.original[:]
	binary.NativeEndian.PutUint64(b, v)
	e.piece[0] = b
	var to scatter
	to.begin(q.cfg.PD, w.SGEs, 0)
	return to.write(e, q.reqWriter, e.piece[:], len(b), true)
}
