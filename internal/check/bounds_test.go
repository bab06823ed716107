package check

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/cm"
	"softroce/internal/conversation"
	"softroce/packet"
)

func addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n + 1}) }

// sendTo returns a SEND ONLY with a PSN to a queue pair.
func sendTo(no int, qpn, psn uint32) capture.Record {
	a := packet.Addressing{Src: addr(0), Dst: addr(1), HopLimit: 64, SrcPort: 0xc000}
	h := packet.Header{BTH: packet.BTH{Opcode: sendOnly, PKey: packet.DefaultPKey, DestQP: qpn, PSN: psn}}
	var tx packet.Tx
	tx.Set(&h)
	b := packet.AppendFrame(nil, &a, &tx)
	return capture.Record{No: no, Time: time.Unix(int64(no), 0), LinkType: capture.Ethernet, Length: len(b), Data: b}
}

func TestStreamHistoryIsBounded(t *testing.T) {
	const n = 3 * maxHistory
	var rs []capture.Record
	for i := range n {
		rs = append(rs, sendTo(i+1, 17, uint32(i*3)))
	}
	fs := newFlows(survey(yield(rs), nil).Flows)
	j := newJudge(fs)
	for _, r := range rs {
		j.record(r)
		if got := len(fs.list[0].stream.requests); got > maxHistory || got != j.requests {
			t.Fatalf("%d requests, counted as %d", got, j.requests)
		}
	}
}

// Requests are counted as long as they are kept, also those of a stream that a PSN far away has
// ended, until it is clear whether it goes on.
func TestKeptRequestsAreCounted(t *testing.T) {
	var rs []capture.Record
	for _, psn := range []uint32{1, 2, 3, 1 << 22, 4, 5, 1 << 23, 1<<23 + 1, 1 << 21, 1<<21 + 1} {
		rs = append(rs, sendTo(len(rs)+1, 17, psn))
	}
	fs := newFlows(survey(yield(rs), nil).Flows)
	j := newJudge(fs)
	for i, r := range rs {
		j.record(r)
		s := fs.list[0].stream
		kept := len(s.requests)
		if s.aside != nil {
			kept += len(s.aside.stream.requests)
		}
		if j.requests != kept {
			t.Errorf("packet %d: %d requests are kept, counted as %d", i+1, kept, j.requests)
		}
	}
}

func TestFlowsBeyondLimitAreNoted(t *testing.T) {
	var rs []capture.Record
	for i := range conversation.MaxFlows + 10 {
		rs = append(rs, sendTo(i+1, uint32(i+17), 1))
	}
	r := Records(rs)
	if r.Total != 0 || r.Flows != conversation.MaxFlows || len(r.Notes) != 1 || r.Notes[0].Kind != noteMany.ID || r.Notes[0].Count != 10 {
		t.Error(r)
	}
}

func TestViolationsBeyondLimitAreCountedOnly(t *testing.T) {
	var rs []capture.Record
	for i := range 2 * maxViolations {
		rs = append(rs, sendTo(i+1, 0, 1))
	}
	r := Records(rs)
	if r.Total != 2*maxViolations || len(r.Violations) != maxViolations || r.ByRule["qpn"] != r.Total {
		t.Errorf("%d listed of %d", len(r.Violations), r.Total)
	}
}

func TestMSNBaseNarrowsRange(t *testing.T) {
	var m msnBase
	for _, c := range []struct {
		msn         uint32
		least, most int
		ok          bool
	}{
		{0xffffff, 1, 3, true}, // counts from 0xfffffc to 0xfffffe
		{2, 4, 4, true},        // 0xfffffe
		{2, 5, 5, false},
		{4, 6, 9, true},
		{4, 7, 9, false},
	} {
		if got := m.holds(c.msn, c.least, c.most); got != c.ok {
			t.Errorf("MSN %#x for %d to %d messages: %v", c.msn, c.least, c.most, got)
		}
	}
}

func TestEveryRuleAndNoteIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/reference/check-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Rules() {
		if row := fmt.Sprintf("\n| `%s` | %s | %s |\n", r.ID, r.Text, r.Ref); !strings.Contains(string(b), row) {
			t.Errorf("docs/reference/check-rules.md lacks the row%s", row)
		}
	}
	for _, n := range notes() {
		if row := fmt.Sprintf("\n| `%s` | %s |\n", n.ID, n.Text); !strings.Contains(string(b), row) {
			t.Errorf("docs/reference/check-rules.md lacks the row%s", row)
		}
	}
}

// What was agreed on for a connection is known however many connections were requested before it.
func TestNewestSetupsAreRemembered(t *testing.T) {
	j := newJudge(newFlows(conversation.NewSurvey()))
	packet := func(src, dst byte) *judgedPacket {
		p := &judgedPacket{Packet: &capture.Packet{}}
		p.Src, p.Dst = addr(src), addr(dst)
		return p
	}
	const n = 3 * maxSetups
	for i := range uint32(n) {
		j.message(packet(0, 1), &cm.REQ{LocalID: i, LocalQPN: i})
	}
	for i := range uint32(n) {
		j.message(packet(0, 1), &cm.REQ{LocalID: n + i, LocalQPN: i})
		j.message(packet(1, 0), &cm.REP{RemoteID: n + i, LocalQPN: i, StartingPSN: i})
	}
	for _, m := range []int{len(j.setups.requests.recent) + len(j.setups.requests.older), len(j.setups.flows.recent) + len(j.setups.flows.older)} {
		if m > 2*maxSetups {
			t.Errorf("%d are kept, want at most %d", m, 2*maxSetups)
		}
	}
	for i := range uint32(maxSetups / 2) {
		k := conversation.FlowKey{Src: addr(0), Dst: addr(1), QPN: n - 1 - i}
		if s := j.setups.flows.take(k); s == nil || s.psn != n-1-i {
			t.Fatalf("the setup of %v is %v", k, s)
		}
	}
}
