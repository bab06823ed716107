package fault

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/internal/ib"
)

func verbsOf(t *testing.T, nic, program string) *Verbs {
	t.Helper()
	p, err := Parse(strings.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerbs()
	v.SetProgram(nic, p)
	return v
}

// errors returns the errors with which n equal calls fail.
func (v *Verbs) errors(n int, c Call) (l []syscall.Errno) {
	for range n {
		e := syscall.Errno(0)
		if d := v.Evaluate(c); len(d.Rules) > 0 {
			e = d.Rules[len(d.Rules)-1].Errno
		}
		l = append(l, e)
	}
	return l
}

// Rules are numbered over packets and verbs together, and may be added and removed while others
// keep their counts.
func TestRulesComeAndGo(t *testing.T) {
	parse := func(program string) *Program {
		p, err := Parse(strings.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	v := NewVerbs()
	p := parse("fail create_cq EIO nth 2\nseed 5\ndrop receive\nslow create_cq 1s")
	if first, last := v.Number(p); first != 1 || last != 3 || p.Verbs[0].ID != 1 || p.Rules[0].ID != 2 || p.Verbs[1].ID != 3 {
		t.Errorf("%d to %d: %d, %d, %d", first, last, p.Verbs[0].ID, p.Rules[0].ID, p.Verbs[1].ID)
	}
	v.SetProgram("", p)
	e := NewEvaluator(p)
	c := Call{Verb: "create_cq"}
	v.Evaluate(c)
	added := parse("fail create_cq ENOMEM nth 1 time ..1h\ndrop send time ..1us")
	v.Number(added)
	v.Add(added)
	e.Begin(1)
	e.Add(5000, added)
	if v.Remove(2) || !v.Remove(3) || v.Remove(3) {
		t.Error("Remove")
	}
	if got := v.errors(2, c); got[0] != syscall.EIO || got[1] != syscall.ENOMEM {
		t.Errorf("errors %v", got)
	}
	var d Verdict
	drops := func(now int64, dir Direction) bool {
		e.Evaluate(now, &PacketInfo{Direction: dir}, &d, MaxQueued)
		return d.Drop
	}
	if !drops(1, Received) || !drops(5999, Sent) || drops(6000, Sent) {
		t.Error("times of rules that were added count from then")
	}
	if !e.Remove(2) || e.Remove(2) || drops(1, Received) || e.AppliesTo(Received) || !e.AppliesTo(Sent) {
		t.Error("a rule that was removed acts")
	}
}

func TestVerbRulesSelectCalls(t *testing.T) {
	createCQ := Call{Verb: "create_cq", NIC: "nic0", PID: 7, Comm: "app"}
	const failed = syscall.ENOMEM
	for _, c := range []struct {
		rule string
		want []bool // whether each of five calls fails
	}{
		{"fail create_cq ENOMEM", []bool{true, true, true, true, true}},
		{"fail create_qp ENOMEM", make([]bool, 5)},
		{"fail create_qp,create_cq ENOMEM nth 2", []bool{false, true, false, false, false}},
		{"fail create_cq ENOMEM skip 1 every 2", []bool{false, false, true, false, true}},
		{"fail create_cq ENOMEM count 2", []bool{true, true, false, false, false}},
		{"fail create_cq ENOMEM nic nic0 count 1", []bool{true, false, false, false, false}},
		{"fail create_cq ENOMEM nic nic1", make([]bool, 5)},
		{"fail create_cq ENOMEM client app nth 1", []bool{true, false, false, false, false}},
		{"fail create_cq ENOMEM client other,7 nth 1", []bool{true, false, false, false, false}},
		{"fail create_cq ENOMEM client other", make([]bool, 5)},
		{"fail create_cq ENOMEM time 1h..", make([]bool, 5)},
		{"fail create_cq ENOMEM time ..1h nth 1", []bool{true, false, false, false, false}},
	} {
		for i, e := range verbsOf(t, "", c.rule).errors(5, createCQ) {
			if (e == failed) != c.want[i] {
				t.Errorf("%s: call %d ends with %v", c.rule, 1+i, e)
			}
		}
	}
}

func TestDelaysOfVerbsAddUp(t *testing.T) {
	v := verbsOf(t, "", "slow reg_mr 20ms\nslow reg_mr 1s\nfail reg_mr EFAULT\nslow reg_mr 1m")
	if d := v.Evaluate(Call{Verb: "reg_mr"}); d.Delay != 1020*time.Millisecond || len(d.Rules) != 3 || d.Rules[2].Errno != syscall.EFAULT {
		t.Errorf("decided %v", d)
	}
}

// What a program chooses depends on its seed and its rules alone.
func TestRandomChoicesOfVerbsRepeat(t *testing.T) {
	const program = "seed 3\nfail alloc_pd ENOMEM chance 50%"
	call := Call{Verb: "alloc_pd"}
	a, b := verbsOf(t, "", program).errors(64, call), verbsOf(t, "", program).errors(64, call)
	n := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("call %d: %v and %v", i, a[i], b[i])
		}
		if a[i] != 0 {
			n++
		}
	}
	if n < 16 || n > 48 {
		t.Errorf("%d of 64 calls failed, want about half", n)
	}
}

func TestCallsWithoutANICAreCounted(t *testing.T) {
	v := verbsOf(t, "", "slow rdma_create_id 1us\nslow rdma_create_id 1us nic nic0")
	for _, nic := range []string{"", "", "nic0"} {
		v.Evaluate(Call{Verb: "rdma_create_id", NIC: nic})
	}
	for _, c := range []struct {
		nics []string
		want []uint64
	}{{[]string{"nic0", ""}, []uint64{3, 1}}, {[]string{"nic0"}, []uint64{1, 1}}, {[]string{"nic1"}, []uint64{0}}} {
		var got []uint64
		for _, r := range v.Counters(c.nics...) {
			got = append(got, r.Acted)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: rules acted on %v calls, want %v", c.nics, got, c.want)
		}
	}
}

func TestProgramOfANICLeavesOthersAlone(t *testing.T) {
	v := verbsOf(t, "nic0", "fail alloc_pd ENOMEM\nfail alloc_pd EPERM nic nic1")
	on := func(nic string) syscall.Errno { return v.errors(1, Call{Verb: "alloc_pd", NIC: nic})[0] }
	if a, b := on("nic0"), on("nic1"); a != syscall.ENOMEM || b != 0 {
		t.Errorf("nic0: %v, nic1: %v", a, b)
	}
	if c := v.Counters("nic0"); len(c) != 1 || c[0].Matched != 1 || c[0].Acted != 1 {
		t.Errorf("counted %+v", c)
	}
	if c := v.Counters("nic1"); len(c) != 0 {
		t.Errorf("counted %+v for the other NIC", c)
	}
	v.SetProgram("nic0", &Program{})
	if e := on("nic0"); e != 0 {
		t.Errorf("after the program was taken away: %v", e)
	}
}

// A program with a seed decides the same each time that it is added, and rules without one do not
// decide alike.
func TestAddedProgramsDecideByTheirSeed(t *testing.T) {
	const program = "fail alloc_pd ENOMEM chance 50%\ndrop chance 50%\nfail completion LOC_PROT_ERR chance 50%\nslow alloc_pd 1us chance 50%"
	rules := NewVerbs()
	decisions := func(text string) string {
		p, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		first, last := rules.Number(p)
		rules.Add(p)
		packets, c := NewEvaluator(p.For("nic0")), &Completions{}
		c.Add(1, p.For("nic0"))
		got := ""
		for i := range int64(32) {
			var v Verdict
			packets.Evaluate(i, &PacketInfo{}, &v, 10)
			got += fmt.Sprint(len(rules.Evaluate(Call{Verb: "alloc_pd"}).Rules), v.Drop, c.Fail(i, &WorkRequest{Opcode: ib.WCSend}) != nil, " ")
		}
		for id := first; id <= last; id++ {
			rules.Remove(id)
		}
		return got
	}
	if a, b := decisions("seed 7\n"+program), decisions("seed 7\n"+program); a != b {
		t.Errorf("the same program decides\n%s and then\n%s", a, b)
	}
	if a, b := decisions("seed 7\n"+program), decisions("seed 8\n"+program); a == b {
		t.Error("another seed decides the same")
	}
	if a, b := decisions(program), decisions(program); a == b {
		t.Error("two programs without a seed decide the same")
	}
}
