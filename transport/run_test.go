package transport

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// packetOf returns packet k of a run.
func packetOf(t *testing.T, run *packet.Tx, k int) *packet.Tx {
	t.Helper()
	tx := &packet.Tx{}
	tx.HeadLen = uint8(run.Run.Header(tx.Head[:], run.Head[:run.HeadLen], k))
	payload := bytes.Join(run.Payload, nil)
	size := len(payload) / run.Run.Packets()
	tx.Payload = [][]byte{payload[k*size : (k+1)*size]}
	if tx.Len = int(tx.HeadLen) + size; k == 0 && tx.Len != run.Len {
		t.Fatalf("the run's first packet has %d bytes, its Len is %d", tx.Len, run.Len)
	}
	return tx
}

// outcome is all that packets may change of a side.
func (s *side) outcome() string {
	s.flush()
	var out string
	for _, tx := range s.out {
		out += fmt.Sprintf("%x/%x ", tx.Head[:tx.HeadLen], crc32.ChecksumIEEE(bytes.Join(tx.Payload, nil)))
	}
	psn, msn := s.qp.Expected()
	una, send, next := s.qp.Progress()
	return fmt.Sprint(s.qp.State(), psn, msn, una, send, next, s.qp.resp.accepted, s.qp.resp.nextWrite(), s.done, s.events, out, s.count, s.qp.Failure())
}

// nextWrite is where the message in progress continues.
func (r *responder) nextWrite() string {
	return fmt.Sprint(r.message, r.region != nil, r.va, r.left, r.placed, r.hasRecv, r.into.i, r.into.off, r.replies.nakSent)
}

// A run changes what its packets change, whatever is wrong with it, and wherever. A hostile peer
// sends it, packets before it are lost or repeated, and memory goes away.
func TestRunIsReceivedAsItsPackets(t *testing.T) {
	whole, seeds := 0, uint64(400)
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		o := defaults
		o.mtu = 256
		_, one := connect(t, o)
		_, all := connect(t, o)
		if r.IntN(8) == 0 { // not yet in RTS: the first packet reports that the connection is established
			one, all = newSide(t, 18, 1<<18), newSide(t, 18, 1<<18)
			toRTR(t, one, o, 17, o.psn)
			toRTR(t, all, o, 17, o.psn)
		}
		sides := []*side{one, all}
		for range r.IntN(3) {
			n := r.IntN(9) * 256
			for _, s := range sides {
				s.rq.wrs = append(s.rq.wrs, RecvWR{ID: 7, SGEs: append(s.sge(0, n), s.sge(8192, 300)...)})
				if n == 0 {
					s.rq.wrs[0].SGEs[1].LKey++
				}
			}
		}
		psn := o.psn
		for range 1 + r.IntN(4) {
			n, write := 2+r.IntN(7), r.IntN(3) > 0
			first := packet.Opcode(packet.SendFirst)
			if write {
				first = packet.WriteFirst
			}
			h := packet.Header{BTH: packet.BTH{PKey: packet.DefaultPKey, DestQP: 18},
				RETH: packet.RETH{VA: sideBase + uint64(r.IntN(1000)), RKey: one.region.RKey(), Length: uint32(n * 256)}}
			if r.IntN(3) == 0 {
				falsify(r, &h)
			}
			for k := 0; k < n; {
				run := packet.Run{Repeat: uint16(r.IntN(n - k))}
				run.Ends = write && run.Repeat > 0 && k+run.Packets() == n
				h.Opcode, h.PSN = first, packet.PSNAdd(psn, k)
				switch {
				case k > 0 && k == n-1:
					h.Opcode, h.AckReq = first+2, true
				case k > 0:
					h.Opcode, h.AckReq = first+1, false
				default:
					h.AckReq = false
				}
				if !write && k+run.Packets() == n && run.Repeat > 0 {
					run.Repeat--
				}
				if r.IntN(20) == 0 && run.Repeat > 0 {
					run.Ends = !run.Ends
				}
				k += run.Packets()
				size := run.Packets() * 256
				if r.IntN(20) == 0 {
					size = run.Packets() * 4 * r.IntN(70)
				}
				switch r.IntN(40) {
				case 0:
					continue // lost
				case 1:
					h.PSN = packet.PSNAdd(h.PSN, -r.IntN(6)) // repeated, at least in part
				case 2:
					h.Opcode ^= packet.Opcode(1 << r.IntN(4))
				case 3:
					for _, s := range sides {
						s.table.Deregister(s.region)
					}
				case 4:
					h.AckReq = true
				case 5:
					at := one.qp.Query()
					at.Access, at.State = ib.AccessRemoteRead, one.qp.State()
					for _, s := range sides {
						s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskAccess)
					}
				}
				in := h.Opcode.Info()
				if !in.Valid || in.Service != packet.RC {
					continue
				}
				payload := make([]byte, size)
				fill(payload, seed+uint64(k))
				var tx packet.Tx
				tx.Begin()
				tx.Add(payload)
				tx.FinishRun(&h, run)
				if all.receiveRun(&tx) {
					whole++
				}
				one.receivePackets(&tx)
				if r.IntN(3) == 0 {
					one.transmit()
					all.transmit()
				}
			}
			psn, _ = one.qp.Expected()
		}
		one.transmit()
		all.transmit()
		if x, y := one.outcome(), all.outcome(); x != y {
			t.Fatalf("seed %d: as packets\n%s\nas a run\n%s", seed, x, y)
		}
		if !bytes.Equal(one.mem, all.mem) {
			t.Fatalf("seed %d: memory differs", seed)
		}
	}
	if whole < int(seeds)/2 {
		t.Errorf("%d runs were received as a whole in %d cases", whole, seeds)
	}
}

// falsify makes a request wrong.
func falsify(r *rand.Rand, h *packet.Header) {
	switch r.IntN(6) {
	case 0:
		h.RETH.RKey++
	case 1:
		h.RETH.Length += uint32(r.IntN(3)-1) * 256
	case 2:
		h.RETH.Length = []uint32{0, 1, MaxMessage, MaxMessage + 1, math.MaxUint32}[r.IntN(5)]
	case 3:
		h.RETH.VA = sideBase + 1<<18 - uint64(r.IntN(2000))
	case 4:
		h.RETH.Length--
	case 5:
		h.RETH.VA = math.MaxUint64 - 100
	}
}

// receiveRun passes a run to s and reports whether it was taken as a whole.
func (s *side) receiveRun(tx *packet.Tx) bool {
	if tx.Run.Repeat > 0 {
		var p RxPacket
		if _, err := p.Header.Parse(tx.Head[:]); err != nil {
			s.t.Fatal(err)
		}
		payload := bytes.Join(tx.Payload, nil)
		p.Payload, p.Len, p.Run = tx.Payload, len(payload), tx.Run
		if size := len(payload) / tx.Run.Packets(); tx.Run.Repeat%2 == 1 && size > 0 { // a piece for each packet
			p.Payload = slices.Collect(slices.Chunk(payload, size))
		}
		before := s.outcome()
		if s.qp.ReceiveRun(&s.env, &p) {
			s.flush()
			return true
		}
		if after := s.outcome(); after != before {
			s.t.Fatalf("a run that was not taken has changed\n%s\nto\n%s", before, after)
		}
	}
	s.receivePackets(tx)
	return false
}

func (s *side) receivePackets(tx *packet.Tx) {
	for k := range tx.Run.Packets() {
		s.receive(packetOf(s.t, tx, k))
	}
}

// A runSink is a sink that lets packets form runs. Each of them takes a slot.
type runSink struct{ *side }

func (s runSink) Packet(q *QP) *packet.Tx {
	s.settle()
	return s.side.Packet(q)
}

func (s runSink) Last(q *QP) bool { s.settle(); return s.side.Last(q) }
func (s runSink) Room(q *QP) int  { s.settle(); return s.side.Room(q) }

func (s runSink) Run(*QP) int {
	s.settle()
	if s.room < 0 {
		return 9
	}
	return s.room - 1
}

// settle takes the slots of the packets of the last run.
func (s runSink) settle() {
	if n := len(s.out); n > 0 && s.room >= 0 {
		if last := s.out[n-1]; last.Run.Repeat > 0 && last != s.settled {
			s.room -= int(last.Run.Repeat)
			s.settled = last
		}
	}
}

// Runs consist of the packets that are sent without them, while the window, the room and the
// payload that is available vary, after replies and losses, too.
func TestRunsConsistOfThePacketsSentWithoutThem(t *testing.T) {
	whole := 0
	for seed := range uint64(250) {
		r := rand.New(rand.NewPCG(seed, 4))
		o := defaults
		o.mtu = []int{256, 1024, 4096}[r.IntN(3)]
		one, peer := connect(t, o)
		all, _ := connect(t, o)
		sides := []*side{one, all}
		copied := r.IntN(4) == 0
		for _, s := range sides {
			fill(s.mem[:1<<14], seed)
			if copied {
				s.useCopiedMemory(1 << 18)
			}
		}
		all.env.Sink = runSink{all}
		var sent [2][]byte
		packets := 0
		for range 12 {
			for range r.IntN(3) {
				n := r.IntN(40 * o.mtu)
				if r.IntN(2) == 0 {
					n -= n % o.mtu
				}
				n = min(n, 1<<16)
				cut := r.IntN(n + 1)
				op := []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRSend, ib.WRSendWithInv, ib.WRRDMARead}[r.IntN(6)]
				for _, s := range sides {
					if s.qp.sq.used() == 64 {
						continue
					}
					sges := s.sge(0, n)
					if seed%3 == 0 {
						sges = append(s.sge(0, cut), s.sge(1<<15, n-cut)...)
					}
					s.post(SendWR{Opcode: op, SGEs: sges, RemoteAddr: sideBase, RKey: peer.region.RKey(), Imm: 5})
				}
			}
			room := r.IntN(60) - 1
			lost, ack := r.IntN(10) == 0, r.IntN(3)
			for i, s := range sides {
				s.room = room
				s.transmit()
				for _, tx := range s.out {
					if tx.Run.Repeat > 0 {
						whole++
					}
					for k := range tx.Run.Packets() {
						p := tx
						if tx.Run.Repeat > 0 {
							p = packetOf(t, tx, k)
						}
						sent[i] = fmt.Appendf(sent[i], "%x %d %x\n", p.Head[:p.HeadLen], p.Len, crc32.ChecksumIEEE(bytes.Join(p.Payload, nil)))
						if i == 0 {
							packets++
						}
					}
				}
				s.out, s.settled = nil, nil
				una, send, _ := s.qp.Progress()
				n := packet.PSNDiff(send, una)
				if n == 0 || s.qp.State() != ib.QPSRTS {
					continue
				}
				h := packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge, PSN: packet.PSNAdd(una, int(n)*ack/2)}}
				if h.AETH.Syndrome = packet.SyndromeACK | packet.CreditsUnlimited; lost {
					h.AETH.Syndrome = packet.NAKSequence
				} else {
					h.PSN = packet.PSNAdd(h.PSN, -1)
				}
				s.qp.Receive(&s.env, &RxPacket{Header: h})
				s.env.Now += 1000
				s.env.Mem.Epoch()
			}
			if !bytes.Equal(sent[0], sent[1]) {
				t.Fatalf("seed %d: packets\n%s\nand with runs\n%s", seed, sent[0], sent[1])
			}
			if x, y := one.outcome(), all.outcome(); x != y {
				t.Fatalf("seed %d: as packets\n%s\nwith runs\n%s", seed, x, y)
			}
		}
	}
	if whole < 1000 {
		t.Errorf("%d runs were sent", whole)
	}
}

// A WRITE whose memory is missing fails, with runs too. What the arena has read before, which may
// belong to another program, is not sent in its place.
func TestDataThatCannotBeReadAreNotSent(t *testing.T) {
	const page = 4096
	for _, runs := range []bool{false, true} {
		a, b := connect(t, defaults)
		a.mem = mappedPages(t, 16)
		a.useCopiedMemory(1 << 20)
		earlier := bytes.Repeat([]byte{0x5e}, 4*page)
		copy(a.mem, earlier)
		removePage(t, a.mem[8*page:12*page])
		if runs {
			a.env.Sink = runSink{a}
		}
		write := func(id uint64, from int) {
			a.post(SendWR{ID: id, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: sideBase + uint64(from),
				RKey: b.region.RKey(), SGEs: a.sge(from, 4*page)})
			for range 20 {
				a.transmit()
				for _, tx := range a.out {
					b.receiveRun(tx)
				}
				b.transmit()
				for _, tx := range b.out {
					a.receive(tx)
				}
				a.out, b.out = nil, nil
				a.env.Mem.Epoch()
				a.env.Mem.ReleaseReads()
			}
		}
		write(1, 0)
		write(2, 8*page)
		b.flush()
		if !bytes.Equal(b.mem[:4*page], earlier) {
			t.Fatalf("runs %t: the first WRITE did not arrive", runs)
		}
		if n := bytes.Count(b.mem[8*page:12*page], []byte{0x5e}); n > 0 {
			t.Errorf("runs %t: the peer got %d bytes of the earlier message", runs, n)
		}
		if got, want := statuses(a.done), fmt.Sprintf("1:%d 2:%d", ib.WCSuccess, ib.WCLocProtErr); got != want {
			t.Errorf("runs %t: statuses %s, want %s", runs, got, want)
		}
	}
}
