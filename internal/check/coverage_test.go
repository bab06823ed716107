package check

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/packet"
)

// bySender records each packet on an interface of its sender, as the NICs of one daemon do.
func (t *recording) bySender() {
	first := t.parse(0).Src
	for i := range t.rs {
		t.rs[i].Interface = bit(t.parse(i).Src != first)
	}
}

// onBoth records each packet at its sender and at its receiver.
func (t *recording) onBoth() {
	t.bySender()
	var both []capture.Record
	for _, r := range t.rs {
		there := r
		there.Interface = 1 - r.Interface
		both = append(both, r, there)
	}
	t.rs = both
}

// interfaces are ways in which the packets of two NICs get to one file.
var interfaces = []struct {
	name  string
	apply func(t *recording)
	views int // of each packet
}{
	{"each packet where it was sent", (*recording).bySender, 1},
	{"each packet on both interfaces", (*recording).onBoth, 2},
}

// What a capture shows does not depend on the interfaces on which its packets were recorded.
func TestInterfacesDoNotChangeTheVerdict(t *testing.T) {
	for _, file := range []string{"pp-rc-mtu1024", "loss-pp-rc", "loss-read-resp", "loss-atomic", "dup-read", "vp-rnr-multi", "reorder-write", "cm-rping", "ip6-read-bw"} {
		want := load(t, file).judge()
		if want.Connections == 0 || want.Messages == 0 {
			t.Fatalf("%s: nothing is judged\n%v", file, want)
		}
		for _, c := range interfaces {
			tp := load(t, file)
			c.apply(tp)
			got := tp.judge()
			if got.Connections != want.Connections || got.Messages != want.Messages || got.Total != 0 || got.Views != (c.views-1)*want.RoCE {
				t.Errorf("%s, %s: want %d connections, %d messages\n%v", file, c.name, want.Connections, want.Messages, got)
			}
			if !reflect.DeepEqual(got.SentAgain, want.SentAgain) || len(got.Notes) != len(want.Notes) {
				t.Errorf("%s, %s: sent again %v, want %v\n%v", file, c.name, got.SentAgain, want.SentAgain, got)
			}
		}
	}
}

// The copies of a mirror port change neither the verdict nor what was sent again, and hide no
// violation.
func TestMirrorPortDoesNotChangeTheVerdict(t *testing.T) {
	for _, file := range []string{"pp-rc-mtu1024", "loss-pp-rc", "loss-read-resp", "loss-atomic", "vp-nak-badread", "vp-rnr-multi"} {
		for _, broken := range []bool{false, true} {
			tp := load(t, file)
			setIDs(func(int) uint16 { return 0 })(tp, 0)
			if broken {
				tp.edit(0, func(p *capture.Packet) { p.DestQP = 0 })
			}
			want := tp.judge()
			mirrored(tp, 0)
			got := tp.judge()
			if (want.Total > 0) != broken || !reflect.DeepEqual(got.ByRule, want.ByRule) || !reflect.DeepEqual(got.SentAgain, want.SentAgain) ||
				got.Connections != want.Connections || got.Messages != want.Messages || got.Views != want.RoCE || len(got.Notes) != len(want.Notes) {
				t.Errorf("%s, broken %v: judged\n%v\nmirrored\n%v", file, broken, want, got)
			}
		}
	}
}

// A rule that is broken between two interfaces is found, once.
func TestViolationBetweenInterfacesIsReportedOnce(t *testing.T) {
	for _, c := range interfaces {
		tp := load(t, "pp-rc-mtu1024")
		tp.edit(tp.nth(ack, 1), func(p *capture.Packet) { p.AETH.MSN += 5 })
		tp.number()
		want := tp.judge()
		c.apply(tp)
		got := tp.judge()
		if want.Total == 0 || !reflect.DeepEqual(got.ByRule, want.ByRule) {
			t.Errorf("%s: %v, want %v", c.name, got.ByRule, want.ByRule)
		}
	}
}

// A packet that is lost between two interfaces has one view.
func TestLossBetweenInterfacesBreaksNoRule(t *testing.T) {
	tp := load(t, "loss-pp-rc")
	tp.onBoth()
	lost := 0
	for i := len(tp.rs) - 1; i > 0; i -= 14 {
		if tp.rs[i].Interface != tp.rs[i-1].Interface {
			tp.drop(i)
			lost++
		}
	}
	if r := tp.judge(); r.Total != 0 || r.Connections != 1 || lost < 10 {
		t.Errorf("%d packets lost\n%v", lost, r)
	}
}

// The report says first what was not judged, and the last line what was.
func TestReportSaysWhatWasJudged(t *testing.T) {
	oneWay := func(t *recording) {
		for i := len(t.rs) - 1; i >= 0; i-- {
			if !t.parse(i).Opcode.Info().Request {
				t.drop(i)
			}
		}
	}
	for _, c := range []struct {
		name, file string
		change     func(t *recording)
		first      string // what the text begins with if the report is incomplete
		last       string // what the last line contains
	}{
		{"a connection", "pp-rc-mtu1024", func(*recording) {}, "", "no rule is broken: judged 1 connection with 10 messages, 50 packets"},
		{"datagrams", "pp-ud", func(*recording) {}, "", "no rule is broken: judged no connection, 10 packets"},
		{"UC", "pp-uc-mtu1024", func(*recording) {}, "", " messages of UC, "},
		{"no packet", "pp-ud", func(t *recording) { t.rs = nil }, "nothing was judged: there is no RoCE or InfiniBand packet", "nothing was judged"},
		{"a manufacturer's opcode", "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atBTH] = 0xc4 }) },
			"1 packet not judged: reliable datagrams, manufacturer opcodes or CNPs of InfiniBand", "as far as was judged: no connection, 9 packets"},
		{"manufacturers' opcodes only", "pp-ud", func(t *recording) {
			for i := range t.rs {
				t.raw(i, func(b []byte) { b[atBTH] = 0xc4 })
			}
		}, "10 packets not judged: reliable datagrams, manufacturer opcodes or CNPs of InfiniBand", "nothing was judged"},
		{"one direction", "read-bw", oneWay, "requests and replies were not compared: 1 flow without an opposite direction: 10.77.0.12 > 10.77.0.11 QP ", "no rule is broken as far as was judged: no connection, "},
	} {
		tp := load(t, c.file)
		c.change(tp)
		r := tp.judge()
		lines := strings.Split(strings.TrimSpace(r.String()), "\n")
		if last := lines[len(lines)-1]; r.Total != 0 || !strings.Contains(last, c.last) || last != r.Verdict {
			t.Errorf("%s: the last line does not contain %q\n%v", c.name, c.last, r)
		}
		if incomplete := len(r.NotJudged) > 0; incomplete != (c.first != "") || !strings.HasPrefix(lines[0], c.first) {
			t.Errorf("%s: not judged: %q; the first line is to begin with %q\n%v", c.name, r.NotJudged, c.first, r)
		}
	}
}

// A queue pair that is connected to itself is a connection: its packets go to one flow.
func TestQueuePairConnectedToItselfIsJudged(t *testing.T) {
	tp := load(t, "pp-rc-mtu1024")
	host, qpn := tp.parse(0).Dst, tp.parse(0).DestQP
	for i := range tp.rs {
		tp.edit(i, func(p *capture.Packet) {
			p.Src, p.Dst, p.DestQP = host, host, qpn
			if p.Opcode.Info().Kind == packet.KindAck {
				p.PKey = packet.DefaultPKey
			}
		})
	}
	if r := tp.judge(); r.Connections != 1 || r.Flows != 1 {
		t.Errorf("want a connection\n%v", r)
	}
}

// A violation says what the packet has and what was expected.
func TestViolationSaysWhatWasExpected(t *testing.T) {
	for _, c := range []struct {
		file   string
		change func(t *recording)
		want   func(t *recording) string // of the unchanged recording
	}{
		{"pp-ud", func(t *recording) { t.rs[0].Data[len(t.rs[0].Data)-1] ^= 1 },
			func(t *recording) string { return fmt.Sprintf("expected %#08x", t.parse(0).ICRC()) }},
		{"pp-ud", func(t *recording) { t.rs[0].Data[atIP+10] ^= 1 },
			func(t *recording) string {
				return fmt.Sprintf("expected %#04x", binary.BigEndian.Uint16(t.rs[0].Data[atIP+10:]))
			}},
		{"pp-rc-mtu1024", func(t *recording) { t.edit(0, func(p *capture.Packet) { p.Payload = p.Payload[:1020] }) },
			func(*recording) string { return "with 1020 bytes, expected the path MTU, 1024" }},
		{"read-bw", func(t *recording) {
			t.edit(t.nth(readLast, 1), func(p *capture.Packet) { p.Payload = p.Payload[:len(p.Payload)-4] })
		}, func(t *recording) string {
			n := len(t.parse(t.nth(readLast, 1)).Payload)
			return fmt.Sprintf("%d bytes, expected %d", n-4, n)
		}},
		{"read-bw", func(t *recording) { t.edit(t.nth(readMiddle, 1), func(p *capture.Packet) { p.Opcode = readLast }) },
			func(*recording) string { return "expected MIDDLE, as number " }},
	} {
		tp := load(t, c.file)
		want := c.want(tp)
		for i := range tp.rs {
			tp.rs[i].Data = slices.Clone(tp.rs[i].Data)
		}
		c.change(tp)
		if r := tp.judge(); !slices.ContainsFunc(r.Violations, func(v Violation) bool { return strings.Contains(v.Detail, want) }) {
			t.Errorf("%s: no violation says %q\n%v", c.file, want, r)
		}
	}
}

// A request that does not stand where its PSN belongs is named by its packet, with the PSN that was
// expected there or the connection that it does not belong to.
func TestViolationNamesTheRequestAndWhatWasExpected(t *testing.T) {
	for _, c := range []struct {
		change func(p *capture.Packet)
		want   func(was, is *capture.Packet) string
	}{
		{func(p *capture.Packet) { p.PSN = packet.PSNAdd(p.PSN, 1) }, expectedPSN},
		{func(p *capture.Packet) { p.PSN = packet.PSNAdd(p.PSN, 1000) }, expectedPSN},
		{func(p *capture.Packet) { p.DestQP ^= 0x40000 }, expectedQP},
	} {
		tp := load(t, "write-lat-2b")
		i := tp.nth(writeOnly, 4)
		was := tp.parse(i)
		tp.edit(i, c.change)
		tp.number()
		want := c.want(was, tp.parse(i))
		if r := tp.judge(); r.Total != 1 || r.Violations[0].Packet != i+1 || r.Violations[0].Detail != want {
			t.Errorf("want packet %d: %s\n%v", i+1, want, r)
		}
	}
}

func expectedPSN(was, is *capture.Packet) string {
	return fmt.Sprintf("%v with PSN %d, expected %d", is.Opcode, is.PSN, was.PSN)
}

func expectedQP(was, is *capture.Packet) string {
	return fmt.Sprintf("%v with PSN %d from %v to %v QP %#x, the connection is from %v to QP %#x",
		is.Opcode, is.PSN, is.Src, is.Dst, is.DestQP, was.Src, was.DestQP)
}
