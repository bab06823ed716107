package check

import (
	"testing"
	"time"

	"softroce/capture"
	"softroce/cm"
)

// editREQ changes the REQ in the first packet.
func (t *recording) editREQ(f func(r *cm.REQ)) {
	t.Helper()
	t.edit(0, func(p *capture.Packet) {
		h, m, _ := cm.Parse(p.Payload)
		req, ok := m.(*cm.REQ)
		if !ok {
			t.Fatalf("the first packet has %T", m)
		}
		f(req)
		var b [cm.MADSize]byte
		cm.Put(&b, h.TID, h.Modifier, req)
		p.Payload = b[:]
	})
}

// A READ of 700 bytes has one PSN with the path MTU in the REQ, 4096. The requester leaves a second
// one out, and the response is not in the capture. Without the REQ the path MTU is not known: with
// 512 the READ has two PSNs.
func TestPathMTUOfREQIsUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *recording)
		want   int
	}{
		{"path MTU 4096", func(*recording) {}, 1},
		{"path MTU 512", func(t *recording) { t.editREQ(func(r *cm.REQ) { r.PathMTU = 2 }) }, 0},
		{"unassigned code", func(t *recording) { t.editREQ(func(r *cm.REQ) { r.PathMTU = 9 }) }, 0},
		{"no REQ", func(t *recording) { t.drop(0) }, 0},
	} {
		tp := load(t, "cm-rping")
		read := tp.nth(readReq, 0)
		requester := tp.parse(read).Src
		tp.edit(read, func(p *capture.Packet) { p.RETH.Length = 700 })
		for i := read + 1; i < len(tp.rs); i++ {
			if p := tp.parse(i); p.DestQP != cm.GSIQPN && (p.Src == requester) == p.Opcode.Info().Request {
				tp.edit(i, func(p *capture.Packet) { p.PSN++ })
			}
		}
		tp.drop(read + 1)
		tp.number()
		c.change(tp)
		r := tp.judge()
		if n := r.ByRule[rulePSNOrder.ID]; n != c.want || r.Connections != 1 {
			t.Errorf("%s: %d violations of %s, want %d\n%v", c.name, n, rulePSNOrder.ID, c.want, r)
		}
	}
}

// A request without a reply is a violation after eight times the timeout in the REQ, or after 20
// seconds, which is longer than any timeout in use.
func TestTimeoutOfREQIsUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *recording)
		silent time.Duration // until the requester goes on
		want   int
	}{
		{"8 x 67 ms have not passed", func(t *recording) { t.editREQ(func(r *cm.REQ) { r.Primary.ACKTimeout = 14 }) }, 500 * time.Millisecond, 0},
		{"8 x 67 ms have passed", func(t *recording) { t.editREQ(func(r *cm.REQ) { r.Primary.ACKTimeout = 14 }) }, 600 * time.Millisecond, 1},
		{"8 x 2.1 s have not passed", func(*recording) {}, 16 * time.Second, 0},
		{"8 x 2.1 s have passed", func(*recording) {}, 18 * time.Second, 1},
		{"8 x 34 s is more than 20 s", func(t *recording) { t.editREQ(func(r *cm.REQ) { r.Primary.ACKTimeout = 23 }) }, 21 * time.Second, 1},
		{"no REQ, 18 s", func(t *recording) { t.drop(0) }, 18 * time.Second, 0},
		{"no REQ, 21 s", func(t *recording) { t.drop(0) }, 21 * time.Second, 1},
	} {
		tp := load(t, "cm-rping")
		i := tp.nth(ack, 0)
		tp.drop(i)
		tp.shift(i, c.silent)
		tp.number()
		c.change(tp)
		r := tp.judge()
		if n := r.ByRule[ruleUnanswered.ID]; n != c.want || r.Total != n || r.Connections != 1 {
			t.Errorf("%s: %d violations of %s, want %d\n%v", c.name, n, ruleUnanswered.ID, c.want, r)
		}
	}
}

// A response or a WRITE that is an ONLY has the whole message, also if nothing shows the path MTU.
func TestOnlyHasAllOfItsMessageWithUnknownPathMTU(t *testing.T) {
	writeLength := func(n uint32) func(t *recording) {
		return func(t *recording) {
			t.edit(t.nth(writeOnly, 0), func(p *capture.Packet) { p.RETH.Length = n })
		}
	}
	readLength := func(asked uint32, answered int) func(t *recording) {
		return func(t *recording) {
			t.edit(t.nth(readReq, 0), func(p *capture.Packet) { p.RETH.Length = asked })
			t.edit(t.nth(readOnly, 0), func(p *capture.Packet) { p.Payload = make([]byte, answered) })
		}
	}
	for _, c := range []struct {
		name   string
		change func(t *recording)
		rule   Rule // that is broken, if any
		party  Party
	}{
		{"READ of 700 bytes, ONLY of 700", readLength(700, 700), Rule{}, ""},
		{"READ of 700 bytes, ONLY of 64", readLength(700, 64), ruleReadLength, PartyResponder},
		{"READ of 70,000 bytes, ONLY of 256", readLength(70_000, 256), ruleReadLength, PartyResponder},
		{"WRITE of 700 bytes, ONLY of 64", writeLength(700), ruleDMALength, PartyRequester},
	} {
		tp := load(t, "cm-rping")
		c.change(tp)
		tp.drop(0) // the REQ, which has the path MTU
		tp.number()
		r := tp.judge()
		switch {
		case r.Connections != 1 || r.Messages == 0:
			t.Errorf("%s: not judged\n%v", c.name, r)
		case c.rule.ID == "" && r.Total > 0:
			t.Errorf("%s:\n%v", c.name, r)
		case c.rule.ID != "" && (r.Total != 1 || r.Violations[0].Rule != c.rule.ID || r.Violations[0].Party != c.party):
			t.Errorf("%s: want %s (%s)\n%v", c.name, c.rule.ID, c.party, r)
		}
	}
}
