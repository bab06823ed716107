package check

import (
	"errors"
	"iter"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

func TestMSNsNarrowTheRangeTheyStartFrom(t *testing.T) {
	type msn struct {
		value       uint32
		least, most int // messages that it counts
		holds       bool
	}
	for _, c := range []struct {
		name string
		msns []msn
	}{
		{"exact", []msn{{5, 2, 2, true}, {6, 3, 3, true}, {7, 3, 3, false}, {7, 4, 4, true}}},
		{"from 1 to 3 messages", []msn{{5, 1, 3, true}, {6, 4, 4, true}, {7, 4, 4, false}, {7, 5, 5, true}}},
		{"outside of the range", []msn{{5, 1, 3, true}, {9, 4, 4, false}, {5, 4, 4, false}, {8, 4, 4, true}}},
		{"across the wrap", []msn{{0xffffff, 1, 1, true}, {0, 2, 2, true}, {1, 3, 3, true}, {1, 2, 2, false}}},
	} {
		var b msnBase
		for i, m := range c.msns {
			if got := b.holds(m.value, m.least, m.most); got != m.holds {
				t.Errorf("%s: index %d: MSN %d holds: %v", c.name, i, m.value, got)
			}
		}
	}
}

// sentRequest is a request with a PSN; length is that of a READ.
type sentRequest struct {
	op     packet.Opcode
	psn    int64
	length uint32
}

// streamOf returns a stream with requests that were sent in this order. If mtu is 0, the path MTU
// is not known.
func streamOf(mtu int, sent ...sentRequest) *stream {
	s := &stream{judge: newJudge(nil), flow: &flow{Flow: &conversation.Flow{}, mtu: mtu, fits: 256}}
	s.start(uint32(sent[0].psn))
	for _, r := range sent {
		h := packet.Header{BTH: packet.BTH{Opcode: r.op}, RETH: packet.RETH{Length: r.length}}
		s.next = max(s.next, s.insert(request{Part: conversation.NewPart(&h, conversation.Origin+r.psn, mtu, s.flow.fits)}).End())
	}
	return s
}

func TestMessagesAreCountedUpToGap(t *testing.T) {
	const unknown = -1
	for _, c := range []struct {
		name string
		mtu  int
		sent []sentRequest
		want map[int64]int // messages that end before a PSN
	}{
		{"messages of one and two packets", 256, []sentRequest{{sendOnly, 10, 0}, {sendFirst, 11, 0}, {sendLast, 12, 0}},
			map[int64]int{10: 0, 11: 1, 12: 1, 13: 2, 9: unknown}},
		{"swapped", 256, []sentRequest{{sendOnly, 10, 0}, {sendOnly, 12, 0}, {sendOnly, 11, 0}}, map[int64]int{11: 1, 12: 2, 13: 3}},
		{"a gap", 256, []sentRequest{{sendOnly, 10, 0}, {sendOnly, 12, 0}}, map[int64]int{11: 1, 13: unknown}},
		{"a READ of three PSNs", 256, []sentRequest{{readReq, 10, 700}, {sendOnly, 13, 0}}, map[int64]int{13: 1, 14: 2}},
		{"after a READ of unknown length", 0, []sentRequest{{readReq, 10, 700}, {sendOnly, 13, 0}, {sendOnly, 14, 0}},
			map[int64]int{10: unknown, 13: 0, 14: 1, 15: 2}},
	} {
		s := streamOf(c.mtu, c.sent...)
		for psn, want := range c.want {
			if n, ok := s.msgsBelow(conversation.Origin + psn); ok != (want != unknown) || ok && n != want {
				t.Errorf("%s: before PSN %d end %d messages, known: %v; want %d", c.name, psn, n, ok, want)
			}
		}
	}
}

func TestSkippedGapStartsTheCountAnew(t *testing.T) {
	s := streamOf(256, sentRequest{sendOnly, 10, 0}, sentRequest{sendOnly, 13, 0}, sentRequest{readReq, 14, 700}, sentRequest{sendOnly, 17, 0})
	s.msn.base.holds(5, 1, 1)
	s.skip(conversation.Origin + 13)
	if n, ok := s.msgsBelow(conversation.Origin + 17); !ok || n != 2 || s.contiguous != s.next || s.msn.base.known {
		t.Errorf("%d messages, known: %v, up to PSN %d, MSN known: %v", n, ok, conversation.Wrap(s.contiguous), s.msn.base.known)
	}
	s.skip(conversation.Origin + 15) // inside of the READ
	if n, ok := s.msgsBelow(conversation.Origin + 17); !ok || n != 0 || s.base != conversation.Origin+17 {
		t.Errorf("after the READ: %d messages, known: %v, from PSN %d", n, ok, conversation.Wrap(s.base))
	}
}

func TestRequestIsFoundByEachOfItsPSNs(t *testing.T) {
	s := streamOf(256, sentRequest{sendOnly, 10, 0}, sentRequest{readReq, 11, 700}, sentRequest{sendOnly, 16, 0})
	open := streamOf(0, sentRequest{sendOnly, 10, 0}, sentRequest{readReq, 11, 700})
	for _, c := range []struct {
		s    *stream
		psn  int64
		want int64 // PSN of the request, 0: none
	}{{s, 9, 0}, {s, 10, 10}, {s, 11, 11}, {s, 13, 11}, {s, 14, 0}, {s, 16, 16}, {s, 17, 0}, {open, 11, 11}, {open, 5000, 11}} {
		got := int64(0)
		if r := c.s.requestAt(conversation.Origin + c.psn); r != nil {
			got = r.Seq - conversation.Origin
		}
		if got != c.want {
			t.Errorf("PSN %d belongs to the request with PSN %d, want %d", c.psn, got, c.want)
		}
	}
}

// A READ has a PSN after the expected one, and another request has that PSN as well: the READ
// stands for the requests that are missing, and the PSN is one of its responses.
func TestReadThatStandsForMissingRequestsCoversTheNext(t *testing.T) {
	var rs []capture.Record
	for i, r := range []sentRequest{{sendFirst, 0, 0}, {sendLast, 1, 0}, {readReq, 8, 2560}, {sendOnly, 8, 0}, {sendOnly, 12, 0}} {
		h := packet.Header{BTH: packet.BTH{Opcode: r.op, PKey: packet.DefaultPKey, DestQP: 17, PSN: uint32(r.psn)}}
		h.RETH.Length = r.length
		a := packet.Addressing{Src: addr(0), Dst: addr(1), HopLimit: 64, SrcPort: 0xc000, ID: uint16(i + 1)}
		var tx packet.Tx
		tx.Set(&h, make([]byte, map[packet.Opcode]int{sendFirst: 256, sendLast: 4}[r.op]))
		b := packet.AppendFrame(nil, &a, &tx)
		rs = append(rs, capture.Record{No: i + 1, Time: time.Unix(1e9, int64(i)*1e6), LinkType: capture.Ethernet, Data: b, Length: len(b)})
	}
	if n := Records(rs).ByRule[rulePSNOrder.ID]; n == 0 {
		t.Error("no violation of the order of PSNs")
	}
}

// The frames are not in the order of time and break a rule in both orders, so that there are four
// passes. A signal ends the third and the fourth.
func TestInterruptedPassDoesNotReplaceTheReport(t *testing.T) {
	tp := load(t, "pp-ud")
	for i := range tp.rs {
		tp.raw(i, func(b []byte) { b[atIP+8] = 0 })
	}
	tp.rs[0].Time, tp.rs[1].Time = tp.rs[1].Time, tp.rs[0].Time
	interrupted := errors.New("interrupted")
	passes := 0
	r, _, err := judgeRecords(func() iter.Seq2[capture.Record, error] {
		passes++
		if passes <= 2 {
			return yield(tp.rs)()
		}
		return func(yield func(capture.Record, error) bool) { yield(capture.Record{}, interrupted) }
	})
	if passes != 4 || r.RoCE != len(tp.rs) || r.Total == 0 || !errors.Is(err, interrupted) {
		t.Errorf("after %d passes: %d of %d packets, %d violations, %v", passes, r.RoCE, len(tp.rs), r.Total, err)
	}
}

// A READ is one too many if the one before it has no response, but not if the capture program
// dropped the response, or a mirror port delayed it for less time than it took.
func TestExcessReadNeedsCapturedResponse(t *testing.T) {
	const µs = time.Microsecond
	for _, c := range []struct {
		name   string
		change func(t *recording, second int) // of the second READ, which the first one's response follows
		want   int
	}{
		{"sent at once", func(t *recording, second int) {}, 1},
		{"response dropped", func(t *recording, second int) { t.drop(second + 1) }, 0},
		{"response captured late", func(t *recording, second int) { t.rs[second].Time = t.rs[second+1].Time.Add(-4 * µs) }, 0},
	} {
		tp := load(t, "cm-rping") // its REPs grant one READ
		read := tp.nth(readReq, 0)
		want := tp.parse(read)
		tp.edit(read+2, func(p *capture.Packet) { p.Opcode, p.RETH, p.Payload = readReq, want.RETH, nil })
		response := tp.parse(read + 1)
		tp.edit(read+3, func(p *capture.Packet) {
			p.Opcode, p.Payload = readOnly, response.Payload
		})
		tp.swap(read+1, read+2)
		at := tp.rs[read].Time
		tp.rs[read+1].Time, tp.rs[read+2].Time = at.Add(µs), at.Add(9*µs)
		c.change(tp, read+1)
		tp.number()
		if n := tp.judge().ByRule[ruleReads.ID]; n != c.want {
			t.Errorf("%s: %d violations of %s, want %d", c.name, n, ruleReads.ID, c.want)
		}
	}
}

// A mirror port may have delayed the responses to single READs. That does not explain four of them
// without a response where one was granted.
func TestExcessReadIsJudgedByTheResponseThatPermitsIt(t *testing.T) {
	const µs = time.Microsecond
	for _, c := range []struct {
		name   string
		permit time.Duration // when the response is captured that permits the fifth READ
		want   int
	}{
		{"sent too early", 15 * µs, 1},
		{"response captured late", 12 * µs, 0},
	} {
		tp := load(t, "cm-rping") // its REPs grant one READ
		first := tp.nth(readReq, 0)
		request, response := tp.rs[first], tp.rs[first+1]
		psn := tp.parse(first).PSN
		tp.rs = tp.rs[:first]
		for _, e := range []struct {
			packet capture.Record
			read   uint32
			at     time.Duration
		}{
			{request, 0, 0}, {request, 1, 5 * µs}, {request, 2, 6 * µs}, {request, 3, 7 * µs},
			{response, 0, 8 * µs}, {request, 4, 10 * µs},
			{response, 1, 11 * µs}, {response, 2, 12 * µs}, {response, 3, c.permit}, {response, 4, 16 * µs},
		} {
			e.packet.Time = request.Time.Add(e.at)
			tp.rs = append(tp.rs, e.packet)
			tp.edit(len(tp.rs)-1, func(p *capture.Packet) { p.PSN = psn + e.read })
		}
		tp.number()
		if n := tp.judge().ByRule[ruleReads.ID]; n != c.want {
			t.Errorf("%s: %d violations of %s, want %d", c.name, n, ruleReads.ID, c.want)
		}
	}
}
