package check

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"softroce/packet"
)

var update = flag.Bool("update", false, "write the table of mutations to docs/reference/check-rules.md")

// perMutation is how many captures are made of each mutation, if there are as many packets that it
// applies to.
const perMutation = 24

// A tally is the result of a mutation.
type tally struct {
	*mutation
	captures   int
	found      int // captures with a violation
	violations int
	party      int // captures whose violations all name the right party
	rule       int // captures whose violations are all of the mutation's rule
	bad        []string
}

// Each mutation makes captures with one certain violation. Almost all are found, no other NIC is
// accused, and one cause is one violation.
func TestMutationsAreFound(t *testing.T) {
	all := sources(t)
	for _, s := range all {
		if r := s.recording(t).judge(); r.Total != 0 {
			t.Fatalf("%s breaks a rule before it is changed:\n%v", s.name, r)
		}
	}
	var table []tally
	var sum tally
	for i := range mutations {
		y := tally{mutation: &mutations[i]}
		y.run(t, all)
		table = append(table, y)
		sum.captures += y.captures
		sum.found += y.found
		sum.violations += y.violations
		sum.party += y.party
		if y.captures == 0 {
			t.Errorf("%s: no capture has such a packet", y.name)
		}
		if len(y.bad) > 0 {
			t.Logf("%s (%s): %d of %d found, %d of its rule, %d name the party, %d violations:\n%s", y.name, y.mutation.rule.ID, y.found, y.captures, y.rule, y.party, y.violations, strings.Join(y.bad[:min(len(y.bad), 4)], "\n"))
		}
	}
	text := tableOf(table, sum)
	t.Logf("\n%s", text)
	if share := float64(sum.found) / float64(sum.captures); share < 0.97 {
		t.Errorf("%.1f %% of the violations are found", 100*share)
	}
	if each := float64(sum.violations) / float64(sum.found); each > 1.2 {
		t.Errorf("%.2f violations for one cause", each)
	}
	if sum.party != sum.found {
		t.Errorf("%d of %d name the party that violates the rule", sum.party, sum.found)
	}
	everyRuleIsNeeded(t, table)
	compareDocs(t, text)
}

// run makes the captures of a mutation, of packets spread over all sources, and judges them.
func (y *tally) run(t *testing.T, all []*source) {
	type place struct {
		s *source
		i int
	}
	var places []place
	for _, s := range all {
		for i := range s.ps {
			if y.at(s, i) {
				places = append(places, place{s, i})
			}
		}
	}
	step := max(1, len(places)/perMutation)
	for k := 0; k < len(places) && y.captures < perMutation; k += step {
		s, i := places[k].s, places[k].i
		rec := s.recording(t)
		y.change(rec, i)
		y.count(rec.judge(), s, i)
	}
}

func (y *tally) count(r *Report, s *source, i int) {
	y.captures++
	want := y.mutation.party
	if want == "" {
		want = PartyResponder
		if s.ps[i].Opcode.Info().Request {
			want = PartyRequester
		}
	}
	party, rule := true, true
	for _, v := range r.Violations {
		party = party && (v.Party == want || want == "-")
		rule = rule && v.Rule == y.mutation.rule.ID
	}
	y.violations += r.Total
	y.found += bit(r.Total > 0)
	y.party += bit(r.Total > 0 && party)
	y.rule += bit(r.Total > 0 && rule)
	if r.Total != 1 || !party || !rule {
		var b strings.Builder
		fmt.Fprintf(&b, "  %s packet %d %v:", s.name, i+1, s.ps[i].Opcode)
		for _, v := range r.Violations[:min(3, len(r.Violations))] {
			fmt.Fprintf(&b, "\n      %d %s (%s): %s", v.Packet, v.Rule, v.Party, v.Detail)
		}
		y.bad = append(y.bad, b.String())
	}
}

// everyRuleIsNeeded checks that each rule has a mutation that no other rule finds.
func everyRuleIsNeeded(t *testing.T, table []tally) {
	for _, r := range Rules() {
		if !slices.ContainsFunc(table, func(y tally) bool {
			return y.mutation.rule.ID == r.ID && y.found > 0 && y.rule == y.found
		}) {
			t.Errorf("no mutation is found by the rule %s alone", r.ID)
		}
	}
}

func tableOf(table []tally, sum tally) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| what is changed | rule | captures | found | violations per cause |\n|---|---|---|---|---|\n")
	for _, y := range table {
		fmt.Fprintf(&b, "| %s | `%s` | %d | %d %% | %.2f |\n", y.name, y.mutation.rule.ID, y.captures, 100*y.found/max(1, y.captures), float64(y.violations)/float64(max(1, y.found)))
	}
	fmt.Fprintf(&b, "| **all** | | **%d** | **%.1f %%** | **%.2f** |\n", sum.captures, 100*float64(sum.found)/float64(sum.captures), float64(sum.violations)/float64(sum.found))
	return b.String()
}

// compareDocs holds the table in the documentation to the one measured.
func compareDocs(t *testing.T, text string) {
	const file, begin, end = "../../docs/reference/check-rules.md", "| what is changed |", "\n\n"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	at := strings.Index(doc, begin)
	if at < 0 {
		t.Fatalf("%s has no table of mutations", file)
	}
	n := strings.Index(doc[at:], end)
	if n < 0 {
		n = len(doc) - at
	} else {
		n++
	}
	if doc[at:at+n] == text {
		return
	}
	if !*update {
		t.Errorf("%s has another table: go test ./internal/check -run %s -update", file, t.Name())
		return
	}
	if err := os.WriteFile(file, []byte(doc[:at]+text+doc[at+n:]), 0o644); err != nil {
		t.Fatal(err)
	}
}

// An unassigned opcode of the responder's service is the responder's violation, also in the middle
// of a READ response.
func TestUnassignedOpcodeOfResponseIsTheResponders(t *testing.T) {
	for _, s := range sources(t) {
		if s.name != "sim-mtu256" {
			continue
		}
		damaged := 0
		for i := range s.ps {
			if s.ps[i].Opcode != packet.Opcode(packet.ReadResponseMid) {
				continue
			}
			rec := s.recording(t)
			rec.raw(i, func(b []byte) { b[atBTH] = b[atBTH]&0xe0 | 0x1f })
			damaged++
			for _, v := range rec.judge().Violations {
				if v.Party != PartyResponder {
					t.Errorf("packet %d: %d %s (%s): %s", i+1, v.Packet, v.Rule, v.Party, v.Detail)
				}
			}
		}
		if damaged == 0 {
			t.Error("the capture has no such packet")
		}
		return
	}
	t.Error("there is no such capture")
}
