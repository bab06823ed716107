package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"softroce/internal/daemon"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// frame writes a frame between two snapshots and returns its lines.
func frame(t *testing.T, before, now *daemon.Snapshot, size Size) []string {
	t.Helper()
	var b strings.Builder
	f := Frame{Before: before, Now: now, Elapsed: time.Second}
	if err := f.WriteText(&b, size); err != nil {
		t.Fatal(err)
	}
	return strings.Split(b.String(), "\n")
}

// row returns the number of the first line that begins with prefix.
func row(t *testing.T, lines []string, prefix string) int {
	t.Helper()
	for i, l := range lines {
		if strings.HasPrefix(l, prefix) {
			return i
		}
	}
	t.Fatalf("no line begins with %q:\n%s", prefix, strings.Join(lines, "\n"))
	return 0
}

func TestWhatIsWrongIsFirst(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{NICs: 3})
	a, b := f.Open(0), f.Open(1)
	busy, y := verbstest.ConnectedRC(t, a, b)
	broken, z := verbstest.ConnectedRC(t, a, b)
	unconnected := verbstest.EndpointConfig{}.New(t, a)
	before := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	for range 5 {
		busy.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: busy.SGE(0, 64), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		busy.Completion()
	}
	broken.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: broken.SGE(0, 64), RemoteAddr: z.MR.Addr(), RKey: ^z.MR.RKey()})
	broken.Failure(verbs.WCRemAccessErr)
	f.Do(2, func() { f.Devices[2].SetLink(false) })
	now := daemon.NewSnapshot(f.Server.Snapshot(), nil)

	lines := frame(t, &before, &now, Size{})
	at := func(x *verbstest.Endpoint) int { return row(t, lines, fmt.Sprintf("nic0/%d ", x.QPNum())) }
	if !(at(broken) < at(unconnected) && at(unconnected) < at(busy)) {
		t.Errorf("queue pairs are not in order:\n%s", strings.Join(lines, "\n"))
	}
	if !(row(t, lines, "nic2 ") < row(t, lines, "nic0 ")) {
		t.Errorf("the NIC that is down is not first:\n%s", strings.Join(lines, "\n"))
	}
	if l := lines[at(broken)]; !strings.Contains(l, " ERR ") || !strings.Contains(l, "the peer refused RDMA_WRITE of 64 bytes") {
		t.Errorf("failed: %s", l)
	}
	if cells := strings.Fields(lines[at(busy)]); cells[4] != "5" || cells[5] != "0" {
		t.Errorf("rates of %v, want 5 sent and 0 received", cells)
	}
	if !strings.Contains(lines[0], "5 queue pairs: 2 failed, 0 stalled, 1 idle, 2 working") {
		t.Errorf("summary: %s", lines[0])
	}
}

func TestDropsAndFaultRules(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	before := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	now := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	if lines := frame(t, &before, &now, Size{}); strings.Contains(strings.Join(lines, "\n"), "REASON") {
		t.Errorf("a table of no drops:\n%s", strings.Join(lines, "\n"))
	}
	before.Devices[0].Counters.Drops = map[string]uint64{"wrong_icrc": 90}
	now.Devices[0].Counters.Drops = map[string]uint64{"wrong_icrc": 90, "link_fault": 4000}
	now.Devices[1].Faults = []nic.FaultInfo{{ID: 3, Rule: "drop kind ack", Matched: 12, Acted: 7}}
	for _, size := range []Size{{}, {80, 24}} {
		lines := frame(t, &before, &now, size)
		drops := row(t, lines, "NIC   REASON")
		if got := strings.Fields(lines[drops+1]); !slices.Equal(got, []string{"nic0", "link_fault", "4000", "4k"}) {
			t.Errorf("drops that occur now: %q", got)
		}
		if got := strings.Fields(lines[drops+2]); !slices.Equal(got, []string{"nic0", "wrong_icrc", "90", "0"}) {
			t.Errorf("earlier drops: %q", got)
		}
		if got := lines[row(t, lines, "NIC   ID")+1]; !strings.HasPrefix(got, "nic1  3   drop kind ack  12       7") {
			t.Errorf("fault rule: %q", got)
		}
	}
}

func TestQueuePairThatSendsAgainIsBeforeIdleOnes(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a, b := f.Open(0), f.Open(1)
	verbstest.EndpointConfig{}.New(t, a)
	x, _ := verbstest.ConnectedRC(t, a, b)
	before := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	now := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	for i := range now.Devices[0].QPs {
		if q := &now.Devices[0].QPs[i]; q.QPN == x.QPNum() {
			q.Retransmitted += 5
		}
	}
	lines := frame(t, &before, &now, Size{})
	if first := row(t, lines, "QP ") + 1; !strings.HasPrefix(lines[first], fmt.Sprintf("nic0/%d ", x.QPNum())) {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
}

func TestScreenIsNotExceeded(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a := f.Open(0)
	for range 40 {
		verbstest.EndpointConfig{}.New(t, a)
	}
	s := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	for i := range s.Devices[0].Contexts {
		s.Devices[0].Contexts[i].Comm = "\x1b[2J" // a program chooses its name
	}
	s.Devices[0].Counters.Drops = map[string]uint64{}
	for i := range 20 {
		s.Devices[0].Counters.Drops[fmt.Sprint("reason", i)] = 1
		s.Devices[0].Faults = append(s.Devices[0].Faults, nic.FaultInfo{Rule: "drop kind ack"})
	}
	for _, size := range []Size{{80, 24}, {40, 12}, {10, 3}, {1, 1}} {
		lines := frame(t, &s, &s, size)
		if len(lines) > size.Rows {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > size.Columns || strings.Contains(l, "\x1b") {
				t.Errorf("%v: %d columns: %q", size, n, l)
			}
		}
	}
	if lines := frame(t, &s, &s, Size{80, 24}); !strings.Contains(strings.Join(lines, "\n"), " more queue pairs") {
		t.Errorf("nothing says what is left out:\n%s", strings.Join(lines, "\n"))
	}
	if lines := frame(t, &s, &s, Size{}); len(lines) < 45 || !strings.Contains(strings.Join(lines, "\n"), "?[2J") {
		t.Errorf("without a limit:\n%s", strings.Join(lines, "\n"))
	}
}

func TestCountersThatWereSetHaveNoRate(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{NICs: 1})
	before := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	now := daemon.NewSnapshot(f.Server.Snapshot(), nil)
	before.Devices[0].Counters.Values["port_xmit_packets"] = 1000
	now.Devices[0].Counters.Values["port_xmit_packets"] = 10
	now.Devices[0].Counters.Values["port_rcv_packets"] = 2000
	lines := frame(t, &before, &now, Size{})
	got := strings.Fields(lines[row(t, lines, "nic0 ")])
	if want := []string{"0", "2k"}; !slices.Equal(got[4:6], want) {
		t.Errorf("packets per second sent and received: %q, want %q", got[4:6], want)
	}
}
