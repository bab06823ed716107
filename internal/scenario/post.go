package scenario

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/transport"
)

// cmdPost posts a work request. Those of each queue count from 1.
//
//	post QP OPERATION [PLACE]… [id=N] [remote=PLACE|ADDRESS] [rkey=N] [imm=N] [add=N] [compare=N] [swap=N]
//	     [dest_qp=N] [qkey=N] [ah_pd=NAME] [srq=NAME|N] [inv=KEY] [length=N] [placement=N] [selectivity=N] [inline=DATA] [lkey=N] [fence] [solicited] [unsignaled] [and]
//	post QP bind_mw WINDOW PLACE|nothing [access=FLAGS] [rkey=N] …
//	post QP recv [PLACE]… [id=N] [lkey=N] [and]
func (s *stage) cmdPost(w *words) error {
	name, err := w.next("a queue pair")
	if err != nil {
		return err
	}
	what, err := w.next("an operation")
	if err != nil {
		return err
	}
	if what == "recv" {
		return s.postRecv(name, w)
	}
	q, err := s.qp(name)
	if err != nil {
		return err
	}
	op, err := operations.parse(what)
	if err != nil {
		return fmt.Errorf("%w, recv", err)
	}
	wr := &transport.SendWR{ID: q.sendIDs + 1, Opcode: op, Flags: ib.SendSignaled}
	if q.typ == ib.QPTypeUD {
		pd, _ := w.option("ah_pd")
		wr.Dest = testbed.Destination{QP: q.name, PD: pd} // which its NIC knows the way to
	}
	if err := s.datagram(w, q, wr); err != nil {
		return err
	}
	if err := s.sendWords(w, wr); err != nil {
		return err
	}
	if op == ib.WRBindMW && len(w.plain) > 0 {
		return s.postBind(q, w, wr)
	}
	more := w.flag("and")
	if wr.SGEs, err = s.sges(w); err != nil {
		return err
	}
	if err := w.end(); err != nil {
		return err
	}
	s.acts(more, false)
	if err := q.nic.PostSend(name, wr); err != nil {
		return refused(err)
	}
	q.sendIDs = max(q.sendIDs, wr.ID)
	s.carryOn(more)
	return nil
}

// datagram takes whom a datagram is for, if it is not the peer's queue pair, and its Q_Key.
func (s *stage) datagram(w *words, q *queuePair, wr *transport.SendWR) error {
	qpn, key := uint64(q.attr.DestQPN), uint64(q.attr.QKey)
	err := errors.Join(w.number("dest_qp", 24, &qpn), w.number("qkey", 32, &key))
	wr.RemoteQPN, wr.RemoteQKey = uint32(qpn), uint32(key)
	return err
}

// carryOn lets what was done take effect, unless the next line is to follow at once.
func (s *stage) carryOn(more bool) {
	if !more {
		s.testbed.Run(s.testbed.Now(), nil)
	}
}

// sendWords takes all words of a send work request but its local places.
func (s *stage) sendWords(w *words, wr *transport.SendWR) error {
	for name, bit := range map[string]ib.SendFlags{"fence": ib.SendFence, "solicited": ib.SendSolicited} {
		if w.flag(name) {
			wr.Flags |= bit
		}
	}
	if w.flag("unsignaled") {
		wr.Flags &^= ib.SendSignaled
	}
	if d, ok := w.option("inline"); ok {
		b, err := parseData(d)
		if err != nil {
			return err
		}
		wr.Inline, wr.Flags = b, wr.Flags|ib.SendInline
	}
	if wr.Opcode == ib.WRBindMW {
		return w.number("id", 63, &wr.ID)
	}
	if err := errors.Join(s.remote(w, wr), s.extendedWords(w, wr)); err != nil {
		return err
	}
	var imm, add, compare uint64
	err := errors.Join(w.number("id", 63, &wr.ID), w.number("imm", 32, &imm), w.number("add", 64, &add),
		w.number("compare", 64, &compare), w.number("swap", 64, &wr.Swap))
	if wr.CompareAdd = compare; wr.Opcode != ib.WRSendWithInv && wr.Opcode != ib.WRLocalInv {
		wr.Imm = uint32(imm)
	}
	if wr.Opcode == ib.WRAtomicFetchAndAdd {
		wr.CompareAdd = add
	}
	return err
}

// extendedWords takes what the operations have that came to verbs later.
func (s *stage) extendedWords(w *words, wr *transport.SendWR) error {
	if v, ok := w.option("inv"); ok {
		key, err := s.key(v)
		if err != nil {
			return fmt.Errorf("inv=%s: %w", v, err)
		}
		wr.Imm = key
	}
	if v, ok := w.option("srq"); ok {
		number, known := uint64(s.srqs[v]), s.srqs[v] != 0
		if !known {
			var err error
			if number, err = parseNumber(v, 24); err != nil {
				return fmt.Errorf("srq=%s: %w", v, err)
			}
		}
		wr.RemoteSRQ = uint32(number)
	}
	length, placement, selectivity := uint64(0), uint64(1), uint64(0)
	err := errors.Join(w.number("length", 32, &length), w.number("placement", 4, &placement), w.number("selectivity", 2, &selectivity))
	if wr.Opcode == ib.WRFlush {
		wr.Flush = transport.Flush{Length: uint32(length), Placement: uint8(placement), Selectivity: uint8(selectivity)}
	}
	return err
}

// key reads a key: a number, or whose it is.
func (s *stage) key(v string) (uint32, error) {
	if r := s.regions[v]; r != nil {
		return r.RKey, nil
	}
	n, err := parseNumber(v, 32)
	return uint32(n), err
}

// Where the script plays the peer, its memory is wherever the work request says.
const (
	handVA   = 0x1000
	handRKey = 0x77
)

// remote takes what a work request addresses on the other side.
func (s *stage) remote(w *words, wr *transport.SendWR) error {
	wr.RemoteAddr, wr.RKey = handVA, handRKey
	v, ok := w.option("remote")
	if ok {
		if n, err := parseNumber(v, 64); err == nil {
			wr.RemoteAddr = n
		} else {
			p, err := s.place(v)
			if err != nil {
				return fmt.Errorf("remote=%s: %w", v, err)
			}
			wr.RemoteAddr, wr.RKey = p.addr, p.region.RKey
		}
	}
	key := uint64(wr.RKey)
	err := w.number("rkey", 32, &key)
	wr.RKey = uint32(key)
	return err
}

// sges takes the rest of the plain words, which are places.
func (s *stage) sges(w *words) (l []transport.SGE, err error) {
	lkey, forced := w.option("lkey")
	for len(w.plain) > 0 {
		word, _ := w.next("a place")
		p, err := s.place(word)
		if err != nil {
			return nil, err
		}
		g := transport.SGE{Addr: p.addr, Length: uint32(p.length), LKey: p.region.LKey}
		if forced {
			n, err := parseNumber(lkey, 32)
			if err != nil {
				return nil, fmt.Errorf("lkey=%s: %w", lkey, err)
			}
			g.LKey = uint32(n)
		}
		l = append(l, g)
	}
	return l, nil
}

// postRecv posts a receive, to a queue pair or a shared receive queue.
func (s *stage) postRecv(name string, w *words) (err error) {
	n := s.under
	wr := &transport.RecvWR{}
	ids := &s.srqIDs
	if q := s.qps[name]; q != nil {
		n, ids = q.nic, &q.recvIDs
	}
	wr.ID = *ids + 1
	if err := w.number("id", 63, &wr.ID); err != nil {
		return err
	}
	more := w.flag("and")
	if wr.SGEs, err = s.sges(w); err != nil {
		return err
	}
	if err := w.end(); err != nil {
		return err
	}
	if err := n.PostRecv(name, wr); err != nil {
		return refused(err)
	}
	*ids = max(*ids, wr.ID)
	s.carryOn(more)
	return nil
}
