package fault

import (
	"strings"
	"testing"
	"time"

	"softroce/internal/ib"
)

func completionsOf(t *testing.T, nic, program string) *Completions {
	t.Helper()
	p, err := Parse(strings.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	c := &Completions{}
	c.Add(1000, p.For(nic))
	return c
}

func TestCompletionRulesSelectWorkRequests(t *testing.T) {
	write := WorkRequest{PID: 7, Comm: "app", QPN: 0x11, Opcode: ib.WCRDMAWrite, Reliable: true}
	with := func(f func(*WorkRequest)) WorkRequest { w := write; f(&w); return w }
	recv := with(func(w *WorkRequest) { w.Opcode = ib.WCRecv })
	datagram := with(func(w *WorkRequest) { w.Opcode, w.Reliable = ib.WCSend, false })
	for _, c := range []struct {
		rule string
		w    WorkRequest
		want string // for each of four work requests, whether it fails
	}{
		{"fail completion RETRY_EXC_ERR", write, "++++"},
		{"fail completion RETRY_EXC_ERR nth 2,4", write, "-+-+"},
		{"fail completion RETRY_EXC_ERR", recv, "----"}, // none of a receive
		{"fail completion RETRY_EXC_ERR", datagram, "----"},
		{"fail completion LOC_PROT_ERR", recv, "++++"},
		{"fail completion LOC_PROT_ERR", datagram, "++++"},
		{"fail completion LOC_PROT_ERR opcode rdma_read,rdma_write count 1", write, "+---"},
		{"fail completion LOC_PROT_ERR opcode recv", write, "----"},
		{"fail completion LOC_PROT_ERR qp 0x11 nic nic0 client app", write, "++++"},
		{"fail completion LOC_PROT_ERR qp 0x12", write, "----"},
		{"fail completion LOC_PROT_ERR nic nic1", write, "----"},
		{"fail completion LOC_PROT_ERR client 8", write, "----"},
		{"fail completion LOC_PROT_ERR time 1ms..2ms", write, "-+--"},
		{"slow completion 1ms\nhold completion", write, "----"},
	} {
		rules, got := completionsOf(t, "nic0", c.rule), ""
		for i := range int64(4) {
			if r := rules.Fail(1000+i*1e6, &c.w); r != nil {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
	}
}

func TestAccessRulesSelectAccesses(t *testing.T) {
	a := RemoteAccess{PID: 7, Comm: "app", QPN: 0x11, RKey: 0x500}
	w := WorkRequest{PID: 7, Comm: "app", QPN: 0x11, Opcode: ib.WCRDMAWrite, Reliable: true}
	for rule, want := range map[string]string{
		"fail access":         "++++",
		"fail access nth 2,4": "-+-+",
		"fail access rkey 1,0x500 qp 0x11 client app nic nic0": "++++",
		"fail access rkey 0x501":                               "----",
		"fail access qp 0x12":                                  "----",
		"fail access client 8":                                 "----",
		"fail access nic nic1":                                 "----",
		"fail access time 1ms..2ms":                            "-+--",
		"fail access nth 1\nfail access nth 1":                 "++--",
		"fail completion LOC_PROT_ERR\nslow completion 1s":     "----",
	} {
		rules, got := completionsOf(t, "nic0", rule), ""
		if rules.RefusesAccess() != (strings.HasPrefix(rule, "fail access") && !strings.HasSuffix(rule, "nic1")) {
			t.Errorf("%s: RefusesAccess is %v", rule, rules.RefusesAccess())
		}
		for i := range int64(4) {
			if r, _ := rules.Refuse(1000+i*1e6, &a); r != nil {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
		if d, held := rules.Late(1000, &w); strings.HasPrefix(rule, "fail access") && (rules.Fail(1000, &w) != nil || d != 0 || held != nil) {
			t.Errorf("%s: acts on a work request", rule)
		}
	}
}

func TestDelaysOfCompletionsAddUp(t *testing.T) {
	rules := completionsOf(t, "nic0", "slow completion 2ms\nfail completion GENERAL_ERR vendor_err 0x77\nslow completion 1s nth 2\nhold completion nth 3")
	w := WorkRequest{Opcode: ib.WCSend}
	if r := rules.Fail(2000, &w); r == nil || r.Status != ib.WCGeneralErr || r.VendorErr != 0x77 {
		t.Errorf("rule %+v", r)
	}
	for i, want := range []time.Duration{2e6, 2e6 + 1e9, 2e6} {
		if d, held := rules.Late(2000, &w); d != want || (held != nil) != (i == 2) {
			t.Errorf("completion %d: %v, held by %v", i, d, held)
		}
	}
}

// The time of a step is the time at which it began: a rule that the step adds is newer.
func TestRuleActsInTheStepThatAddsIt(t *testing.T) {
	w := WorkRequest{Opcode: ib.WCRDMAWrite, Reliable: true}
	for rule, want := range map[string]bool{"fail completion LOC_PROT_ERR": true, "fail completion LOC_PROT_ERR time 0s..1s": true,
		"fail completion LOC_PROT_ERR time 1ns..1s": false} {
		if fails := completionsOf(t, "nic0", rule).Fail(900, &w) != nil; fails != want {
			t.Errorf("%s: fails is %v", rule, fails)
		}
	}
	if refused, _ := completionsOf(t, "nic0", "fail access").Refuse(900, &RemoteAccess{}); refused == nil {
		t.Error("an access is not refused")
	}
}
