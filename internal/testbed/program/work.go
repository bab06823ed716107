package program

import (
	"context"
	"fmt"
	"slices"

	"softroce/verbs"
)

// sges parses COUNT {ADDRESS LENGTH LKEY}… from argument at on.
func (w request) sges(at int) (l []verbs.SGE) {
	for i := range min(int(w.number(at)), len(w)) {
		l = append(l, verbs.SGE{Addr: w.number(at + 1 + 3*i), Length: uint32(w.number(at + 2 + 3*i)), LKey: uint32(w.number(at + 3 + 3*i))})
	}
	return l
}

// send NAME ID OPCODE FLAGS IMM REMOTE-ADDRESS RKEY COMPARE-ADD SWAP INLINE REMOTE-SRQ FLUSH-LENGTH
// PLACEMENT SELECTIVITY SGES
func (s *session) send(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	wr := verbs.SendWR{
		WRID: w.number(2), Opcode: verbs.WROpcode(w.number(3)), SendFlags: verbs.SendFlags(w.number(4)), RemoteAddr: w.number(6), RKey: uint32(w.number(7)),
		CompareAdd: w.number(8), Swap: w.number(9), RemoteSRQN: uint32(w.number(11)), FlushLength: uint32(w.number(12)),
		FlushPlacement: verbs.FlushPlacement(w.number(13)), FlushSelectivity: verbs.FlushSelectivity(w.number(14)), SGList: w.sges(15),
	}
	if wr.Inline, err = w.bytes(10); err != nil {
		return "", err
	}
	if wr.Opcode == verbs.WRSendWithInv || wr.Opcode == verbs.WRLocalInv {
		wr.InvalidateRKey = uint32(w.number(5))
	} else {
		wr.Imm = uint32(w.number(5))
	}
	if q.typ == verbs.UD {
		if q.ah == nil {
			pd := q.PD()
			if q.ah, err = pd.CreateAH(context.Background(), q.av); err != nil {
				return "", err
			}
		}
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = q.ah, uint32(w.number(6)), uint32(w.number(7))
	}
	return "", q.PostSend(wr)
}

// recv NAME ID SGES
func (s *session) recv(w request) (string, error) {
	wr := verbs.RecvWR{WRID: w.number(2), SGList: w.sges(3)}
	if q := s.srqs[w.text(1)]; q != nil {
		return "", q.PostRecv(wr)
	}
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	return "", q.PostRecv(wr)
}

// poll returns QP ID STATUS OPCODE BYTE-LEN IMM SRC-QP FLAGS of a completion, or nothing.
func (s *session) poll(request) (string, error) {
	var wc [1]verbs.WC
	for _, cq := range s.cqs {
		n, err := cq.Poll(wc[:])
		if err != nil {
			return "", err
		}
		if n == 0 {
			continue
		}
		c := &wc[0]
		imm := c.Imm
		if c.WCFlags&verbs.WCWithInv != 0 {
			imm = c.InvalidatedRKey
		}
		return fmt.Sprint(s.byNumber(c.QPNum), " ", c.WRID, " ", uint32(c.Status), " ", uint32(c.Opcode), " ", c.ByteLen, " ", imm, " ", c.SrcQP, " ",
			uint32(c.WCFlags)), nil
	}
	return "", nil
}

func (s *session) byNumber(qpn uint32) string {
	for name, q := range s.qps {
		if q.QPNum() == qpn {
			return name
		}
	}
	return "-"
}

// event returns TYPE OBJECT of an asynchronous event, or nothing.
func (s *session) event(request) (string, error) {
	ctx, cancel := s.shortContext()
	defer cancel()
	e, err := s.nic.AsyncEvent(ctx)
	if err != nil {
		return "", nil // no event
	}
	names := []string{nameOf(s.cqs, e.CQ), nameOf(s.srqs, e.SRQ)}
	for name, q := range s.qps {
		if e.QP == q.QP {
			names = append(names, name)
		}
	}
	i := slices.IndexFunc(names, func(n string) bool { return n != "-" })
	if i < 0 {
		return fmt.Sprint(uint32(e.EventType), " -"), nil
	}
	return fmt.Sprint(uint32(e.EventType), " ", names[i]), nil
}
