package replay_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
)

// fuzzOpcodes are the opcodes that a byte of input selects from.
var fuzzOpcodes = []packet.Opcode{
	packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly, packet.SendOnlyImm, packet.SendLastInv, packet.SendOnlyInv,
	packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteOnly, packet.WriteLastImm, packet.WriteOnlyImm,
	packet.ReadRequest, packet.ReadResponseFirst, packet.ReadResponseMid, packet.ReadResponseLast, packet.ReadResponseOnly,
	packet.Acknowledge, packet.AtomicAcknowledge, packet.CompareSwap, packet.FetchAdd, packet.Flush, packet.AtomicWrite,
}

// fuzzBytes is the length of a packet in the input.
const fuzzBytes = 8

// fuzzCapture makes a capture of well-formed packets of fuzz input, fuzzBytes each:
//
//	0 opcode   1 direction, QP, AckReq, whether its IP Identification follows the previous one   2, 3 PSN
//	4 payload or RETH length   5 syndrome, or address   6 MSN, or R_Key   7 time
func fuzzCapture(t testing.TB, in []byte) (ps capture.Packets) {
	hosts := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	now := time.Unix(0, 0)
	ids := [2]uint16{}
	for len(in) >= fuzzBytes {
		b := in[:fuzzBytes]
		in = in[fuzzBytes:]
		from := b[1] & 1
		h := packet.Header{BTH: packet.BTH{Opcode: fuzzOpcodes[int(b[0])%len(fuzzOpcodes)], PKey: packet.DefaultPKey,
			DestQP: 16 + uint32(b[1]>>1&1), AckReq: b[1]&4 != 0, PSN: (0xfff000 + uint32(binary.BigEndian.Uint16(b[2:]))) & packet.PSNMask}}
		size := int(b[4]) << (b[1] >> 6 * 2) // up to 16 KiB
		h.RETH = packet.RETH{VA: uint64(b[5])<<56 | uint64(b[5])*8, RKey: uint32(b[6] & 3), Length: uint32(size)}
		if b[6]&0x80 != 0 {
			h.RETH.Length = 1 << 31
		}
		h.Atomic = packet.AtomicETH{VA: h.RETH.VA, RKey: h.RETH.RKey, SwapAdd: 1}
		h.AETH = packet.AETH{Syndrome: packet.Syndrome(b[5]), MSN: uint32(b[6])}
		var payload []byte
		if h.Opcode.Info().Payload {
			payload = make([]byte, min(size, 4096))
		}
		a := packet.Addressing{Src: hosts[from], Dst: hosts[1-from], SrcPort: 50000, DstPort: packet.UDPPort, ID: ids[from], HopLimit: 64}
		if b[1]&8 == 0 {
			ids[from]++
		}
		now = now.Add(time.Duration(b[7]) * time.Millisecond)
		var tx packet.Tx
		tx.Set(&h, payload)
		r := capture.Record{No: len(ps) + 1, Time: now, LinkType: capture.Ethernet, Data: packet.AppendFrame(nil, &a, &tx)}
		p, err := capture.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	return ps
}

// fuzzInput is the inverse of fuzzCapture, for seeds.
func fuzzInput(ps capture.Packets, first netip.Addr) (in []byte) {
	for _, p := range ps {
		for i, op := range fuzzOpcodes {
			if op == p.Opcode {
				flags := byte(bit(p.Src != first) | bit(p.AckReq)<<2)
				size := len(p.Payload)
				if p.Opcode.Info().Headers&packet.HasRETH != 0 {
					size = int(p.RETH.Length)
				}
				for size > 255 && flags>>6 < 3 {
					size >>= 2
					flags += 1 << 6
				}
				in = append(in, byte(i), flags, byte(p.BTH.PSN>>8), byte(p.BTH.PSN), byte(min(size, 255)), byte(p.AETH.Syndrome), byte(p.AETH.MSN), 1)
				break
			}
		}
	}
	return in
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// No capture makes replay fail, hang, or use unbounded memory.
func FuzzReplay(f *testing.F) {
	for _, name := range []string{"vp-all-ops.pcap", "loss-read-req.pcap", "vp-rnr-multi.pcap", "loss-wire-write.pcap", "dup-atomic.pcap"} {
		ps := load(f, name)
		in := fuzzInput(ps, ps[0].Src)
		f.Add(in[:min(len(in), 60*fuzzBytes)])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		ps := fuzzCapture(t, in[:min(len(in), 400*fuzzBytes)])
		for _, strict := range []bool{false, true} {
			r, err := replay.Packets(ps, replay.Options{Strict: strict})
			if err != nil {
				t.Fatal(err)
			}
			_ = r.String()
		}
	})
}

// What can be played of an invalid capture, softroce answers without a difference.
func TestInvalidCapturesPlay(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	played := 0
	for _, name := range []string{"vp-all-ops.pcap", "loss-read-req.pcap", "vp-rnr-multi.pcap", "loss-wire-write.pcap", "dup-atomic.pcap", "vp-nak-oobread.pcap"} {
		ps := load(t, name)
		seed := fuzzInput(ps, ps[0].Src)
		for range 60 {
			in := slices.Clone(seed)
			for range 1 + rnd.IntN(4) {
				in[rnd.IntN(len(in))] = byte(rnd.Uint32())
			}
			ps := fuzzCapture(t, in)
			r, err := liveplay.Packets(ps, testbed.NewSimulated, liveplay.Options{Fast: true})
			switch {
			case errors.Is(err, replay.ErrNothing) || errors.Is(err, replay.ErrMiddle) || errors.Is(err, liveplay.ErrMemory):
			case err != nil:
				t.Fatal(err)
			case r.Differences() > 0:
				t.Errorf("%v\n%v", r, ps)
			default:
				played++
			}
		}
	}
	if played == 0 {
		t.Error("nothing could be played")
	}
}
