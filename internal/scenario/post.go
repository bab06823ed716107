package scenario

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/transport"
)

// cmdPost posts a work request. The IDs on each queue count from 1.
//
//	post QP OPERATION [PLACE]… [id=N] [remote=PLACE|ADDRESS] [rkey=N] [imm=N] [add=N] [compare=N] [swap=N]
//	     [dest_qp=N] [qkey=N] [ah_pd=NAME] [srq=NAME|N] [inv=KEY] [length=N] [placement=N] [selectivity=N]
//	     [inline=DATA] [lkey=N] [fence] [solicited] [unsignaled] [and]
//	post QP bind_mw WINDOW PLACE|nothing [access=FLAGS] [rkey=N] …
//	post QP recv [PLACE]… [id=N] [lkey=N] [and]
func (s *script) cmdPost(args *arguments) error {
	name, err := args.next("a queue pair")
	if err != nil {
		return err
	}
	what, err := args.next("an operation")
	if err != nil {
		return err
	}
	if what == "recv" {
		return s.postRecv(name, args)
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
		pd, _ := args.option("ah_pd")
		wr.Dest = testbed.Destination{PD: pd} // the NIC resolves it
	}
	if err := s.parseDatagram(args, q, wr); err != nil {
		return err
	}
	if err := s.parseSendOptions(args, wr); err != nil {
		return err
	}
	if op == ib.WRBindMW && len(args.plain) > 0 {
		return s.postBind(q, args, wr)
	}
	more := args.flag("and")
	if wr.SGEs, err = s.parseSGEs(args); err != nil {
		return err
	}
	if err := args.end(); err != nil {
		return err
	}
	s.noteAction(more, false)
	if err := q.nic.PostSend(name, wr); err != nil {
		return refused(err)
	}
	q.sendIDs = max(q.sendIDs, wr.ID)
	s.commit(more)
	return nil
}

// parseDatagram parses the destination queue pair and the Q_Key of a datagram, which default to
// those of the peer.
func (s *script) parseDatagram(args *arguments, q *queuePair, wr *transport.SendWR) error {
	qpn, key := uint64(q.attr.DestQPN), uint64(q.attr.QKey)
	err := errors.Join(args.number("dest_qp", 24, &qpn), args.number("qkey", 32, &key))
	wr.RemoteQPN, wr.RemoteQKey = uint32(qpn), uint32(key)
	return err
}

// commit lets an action take effect, unless the next action must follow without delay.
func (s *script) commit(more bool) {
	if !more {
		s.testbed.Run(s.testbed.Now(), nil)
	}
}

// parseSendOptions parses the options of a send work request, except its local places.
func (s *script) parseSendOptions(args *arguments, wr *transport.SendWR) error {
	for name, bit := range map[string]ib.SendFlags{"fence": ib.SendFence, "solicited": ib.SendSolicited} {
		if args.flag(name) {
			wr.Flags |= bit
		}
	}
	if args.flag("unsignaled") {
		wr.Flags &^= ib.SendSignaled
	}
	if d, ok := args.option("inline"); ok {
		b, err := parseData(d)
		if err != nil {
			return err
		}
		wr.Inline, wr.Flags = b, wr.Flags|ib.SendInline
	}
	if wr.Opcode == ib.WRBindMW {
		return args.number("id", 63, &wr.ID)
	}
	if err := errors.Join(s.parseRemote(args, wr), s.parseExtendedOptions(args, wr)); err != nil {
		return err
	}
	var imm, add, compare uint64
	err := errors.Join(args.number("id", 63, &wr.ID), args.number("imm", 32, &imm), args.number("add", 64, &add),
		args.number("compare", 64, &compare), args.number("swap", 64, &wr.Swap))
	if wr.CompareAdd = compare; wr.Opcode != ib.WRSendWithInv && wr.Opcode != ib.WRLocalInv {
		wr.Imm = uint32(imm)
	}
	if wr.Opcode == ib.WRAtomicFetchAndAdd {
		wr.CompareAdd = add
	}
	return err
}

// parseExtendedOptions parses the options of invalidation, XRC and FLUSH.
func (s *script) parseExtendedOptions(args *arguments, wr *transport.SendWR) error {
	if v, ok := args.option("inv"); ok {
		key, err := s.parseKey(v)
		if err != nil {
			return fmt.Errorf("inv=%s: %w", v, err)
		}
		wr.Imm = key
	}
	if v, ok := args.option("srq"); ok {
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
	err := errors.Join(args.number("length", 32, &length), args.number("placement", 4, &placement), args.number("selectivity", 2, &selectivity))
	if wr.Opcode == ib.WRFlush {
		wr.Flush = transport.Flush{Length: uint32(length), Placement: ib.FlushPlacement(placement), Selectivity: ib.FlushSelectivity(selectivity)}
	}
	return err
}

// parseKey parses a key: a number, or the name of its region.
func (s *script) parseKey(v string) (uint32, error) {
	if r := s.regions[v]; r != nil {
		return r.RKey, nil
	}
	n, err := parseNumber(v, 32)
	return uint32(n), err
}

// The default remote address and R_Key of work requests to the script, which has no memory of its
// own.
const (
	peerVA   = 0x1000
	peerRKey = 0x77
)

// parseRemote parses the remote address and R_Key of a work request.
func (s *script) parseRemote(args *arguments, wr *transport.SendWR) error {
	wr.RemoteAddr, wr.RKey = peerVA, peerRKey
	v, ok := args.option("remote")
	if ok {
		if n, err := parseNumber(v, 64); err == nil {
			wr.RemoteAddr = n
		} else {
			p, err := s.parsePlace(v)
			if err != nil {
				return fmt.Errorf("remote=%s: %w", v, err)
			}
			wr.RemoteAddr, wr.RKey = p.addr, p.region.RKey
		}
	}
	key := uint64(wr.RKey)
	err := args.number("rkey", 32, &key)
	wr.RKey = uint32(key)
	return err
}

// parseSGEs parses the remaining plain words, which are places.
func (s *script) parseSGEs(args *arguments) (l []transport.SGE, err error) {
	lkey, forced := args.option("lkey")
	for len(args.plain) > 0 {
		word, _ := args.next("a place")
		p, err := s.parsePlace(word)
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

// postRecv posts a receive to a queue pair or a shared receive queue.
func (s *script) postRecv(name string, args *arguments) (err error) {
	n := s.dut
	wr := &transport.RecvWR{}
	ids := &s.srqIDs
	if q := s.qps[name]; q != nil {
		n, ids = q.nic, &q.recvIDs
	}
	wr.ID = *ids + 1
	if err := args.number("id", 63, &wr.ID); err != nil {
		return err
	}
	more := args.flag("and")
	if wr.SGEs, err = s.parseSGEs(args); err != nil {
		return err
	}
	if err := args.end(); err != nil {
		return err
	}
	if err := n.PostRecv(name, wr); err != nil {
		return refused(err)
	}
	*ids = max(*ids, wr.ID)
	s.commit(more)
	return nil
}
