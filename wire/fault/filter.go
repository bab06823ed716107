package fault

import (
	"errors"
	"slices"
	"strings"
)

// A Filter selects packets by the conditions and choices of rules. Its methods are for one
// goroutine.
type Filter struct{ rules Evaluator }

// ParseFilter reads the conditions and choices of some rules: a rule without its action, such as
// "qp 0x11 kind write nth 3". A packet that one of them selects is selected. The conditions
// "send", "receive" and "client" are none of a filter: a capture does not say which end is the NIC.
func ParseFilter(rules ...string) (*Filter, error) {
	prog := &Program{Seed: 1}
	var errs []error
	for _, text := range rules {
		p := parser{words: strings.Fields(text), filter: true}
		r := p.filterRule()
		if p.err != nil {
			errs = append(errs, p.err)
			continue
		}
		prog.Rules = append(prog.Rules, r)
	}
	return &Filter{NewEvaluator(prog)}, errors.Join(errs...)
}

// filterRule reads a rule without its action.
func (p *parser) filterRule() (r Rule) {
	if len(p.words) == 0 {
		p.fail("", "a condition such as qp 0x11 must follow")
	}
	for len(p.words) > 0 && p.err == nil {
		p.clause(&r)
	}
	if p.err == nil {
		p.check(&r)
	}
	return r
}

// filterClauses are the words with which a clause of a filter begins.
func filterClauses() []string {
	return slices.DeleteFunc(slices.Clone(commonClauses), func(w string) bool { return slices.Contains([]string{"send", "receive", "client"}, w) })
}

// Selects reports whether the filter selects the next packet. Times count from the first call. nic
// is the name of the NIC at which the packet was captured.
func (f *Filter) Selects(now int64, nic string, p *PacketInfo) bool {
	f.rules.Begin(now)
	selected := false
	for _, r := range f.rules.rules {
		if (r.NIC == "" || r.NIC == nic) && r.selects(p, now) {
			selected = true
		}
	}
	return selected
}
