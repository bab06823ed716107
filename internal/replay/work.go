package replay

import (
	"fmt"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// work is the work requests of a requester, rebuilt from what it sent.
type work struct {
	wrs    []transport.SendWR
	data   payloads // that the capture has
	pieces []piece
	mtu    int64
}

// A piece is a part of the payload of a work request: in data, or bytes that the capture does not
// have.
type piece struct {
	wr   int
	at   int64 // in data; -1: unknown
	size int64
}

// atomicLen is the length in bytes of the operand of an atomic or ATOMIC WRITE.
const atomicLen = 8

// maxPieces bounds the pieces of a message: sequences of packets that the capture has or lacks.
const maxPieces = 8

// rebuild rebuilds a work request for each message, in order.
func rebuild(s *stream) *work {
	w := &work{mtu: int64(s.PathMTU)}
	for _, m := range s.Messages {
		w.add(m)
	}
	return w
}

func (w *work) add(m *conversation.Message) {
	if m.Kind == packet.KindNone || m.Broken != nil || w.scattered(m) {
		m.Kind = packet.KindNone
		w.fill(m.NumPSNs)
		return
	}
	wr := transport.SendWR{ID: uint64(len(w.wrs)), RemoteAddr: m.Packets[0].RETH.VA, RKey: m.Packets[0].RETH.RKey}
	last := m.Packets[len(m.Packets)-1]
	imm := last.Info.Headers&packet.HasImmDt != 0
	if imm {
		wr.Imm = last.Imm
	}
	if last.Solicited && last.Info.Position.EndsMessage() {
		wr.Flags |= ib.SendSolicited
	}
	switch m.Kind {
	case packet.KindSend:
		wr.Opcode = ib.WRSend + ib.WROpcode(bit(imm))
		if last.Info.Headers&packet.HasIETH != 0 {
			wr.Opcode, wr.Imm = ib.WRSendWithInv, last.Invalidate
		}
		w.payload(m, w.sendLength(m, last))
	case packet.KindWrite:
		wr.Opcode = ib.WRRDMAWrite + ib.WROpcode(bit(imm))
		w.payload(m, int64(m.Packets[0].RETH.Length))
	case packet.KindRead:
		wr.Opcode = ib.WRRDMARead
		w.unknown(int64(m.Packets[0].RETH.Length))
	case packet.KindFlush:
		wr.Opcode = ib.WRFlush
		wr.Flush = transport.Flush{Length: last.RETH.Length, Placement: ib.FlushPlacement(last.FETH.Placement), Selectivity: ib.FlushSelectivity(last.FETH.Selectivity)}
	case packet.KindAtomicWrite:
		wr.Opcode = ib.WRAtomicWrite
		w.payload(m, atomicLen)
	case packet.KindCompareSwap, packet.KindFetchAdd:
		a := &last.Atomic
		wr.RemoteAddr, wr.RKey, wr.Opcode, wr.CompareAdd = a.VA, a.RKey, ib.WRAtomicFetchAndAdd, a.SwapAdd
		if m.Kind == packet.KindCompareSwap {
			wr.Opcode, wr.CompareAdd, wr.Swap = ib.WRAtomicCmpAndSwp, a.Compare, a.SwapAdd
		}
		w.unknown(atomicLen)
	default: // an operation that softroce does not have
		m.Kind = packet.KindNone
		w.fill(m.NumPSNs)
		return
	}
	w.wrs = append(w.wrs, wr)
}

// scattered reports whether a message has too many gaps to be rebuilt.
func (w *work) scattered(m *conversation.Message) bool {
	n := 1
	for i := 1; i < len(m.Packets); i++ {
		if m.Packets[i].Seq != m.Packets[i-1].Seq+1 {
			n += 2
		}
	}
	return n+1 > maxPieces
}

// sendLength infers the bytes of a SEND. If its last packet is not in the capture, it is longer
// than the packets that are.
func (w *work) sendLength(m *conversation.Message, last *conversation.Transmission) int64 {
	if !last.Info.Position.EndsMessage() {
		return min(m.NumPSNs*w.mtu+1, transport.MaxMessage)
	}
	n := min(int64(len(last.Payload)), w.mtu)
	if m.NumPSNs > 1 {
		n = max(n, 1)
	}
	return (m.NumPSNs-1)*w.mtu + n
}

// fill adds work requests that take n PSNs and of which nothing else is known.
func (w *work) fill(n int64) {
	most := transport.MaxMessage / w.mtu
	for n > 0 {
		k := min(n, most)
		w.unknown(k * w.mtu)
		w.wrs = append(w.wrs, transport.SendWR{ID: uint64(len(w.wrs)), Opcode: ib.WRSend})
		n -= k
	}
}

func (w *work) unknown(size int64) { w.piece(-1, size) }

// piece adds a piece to the work request that is being rebuilt.
func (w *work) piece(at, size int64) {
	if size > 0 {
		w.pieces = append(w.pieces, piece{len(w.wrs), at, size})
	}
}

// payload adds the pieces of a SEND or WRITE of length bytes.
func (w *work) payload(m *conversation.Message, length int64) {
	var pos int64 // bytes added
	var run int64 // of them, those at the end of data that are not in a piece yet
	for _, e := range m.Packets {
		at := (e.Seq - m.First) * w.mtu
		size := min(w.mtu, length-at)
		if size <= 0 {
			break
		}
		if at > pos {
			w.piece(w.data.length-run, run)
			w.unknown(at - pos)
			run = 0
		}
		w.data.add(e.CapturedPayload(), size)
		run += size
		pos = at + size
	}
	w.piece(w.data.length-run, run)
	w.unknown(length - pos)
}

// post sets the scatter/gather lists and posts everything.
func (w *work) post(b *modelQP) error {
	data, err := b.register(&w.data, 0, 0)
	if err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	for _, p := range w.pieces {
		wr := &w.wrs[p.wr]
		g := transport.SGE{Length: uint32(p.size), LKey: b.discard.LKey()}
		if p.at >= 0 {
			g.Addr, g.LKey = uint64(p.at), data.LKey()
		}
		wr.SGEs = append(wr.SGEs, g)
	}
	for i := range w.wrs {
		if err := b.qp.PostSend(&w.wrs[i]); err != nil {
			return fmt.Errorf("work request %d: %w", i, err)
		}
	}
	return nil
}
