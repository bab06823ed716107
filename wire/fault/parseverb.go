package fault

import (
	"maps"
	"slices"

	"softroce/internal/suggest"
)

// verbClauses are the conditions and selections of rules for verbs.
var verbClauses = []string{"nic", "client", "time", "skip", "nth", "every", "chance", "count"}

// verbRule reads the rest of a rule for verbs.
func (p *parser) verbRule(prog *Program, fails bool) {
	r := VerbRule{Line: p.line}
	p.each("the name of a verb, such as create_qp", func(name string) {
		if !slices.Contains(VerbNames, name) {
			p.fail(name, "is not a verb%s", suggest.Word(name, VerbNames))
		}
		r.Verbs = append(r.Verbs, name)
	})
	if fails {
		name := p.word("an error such as ENOMEM")
		e, ok := errnos[name]
		if !ok {
			p.fail(name, "is not the name of an error%s", suggest.Word(name, slices.Sorted(maps.Keys(errnos))))
		}
		r.Errno = e
	} else {
		r.Delay = p.duration("a time such as 200ms or 3s")
	}
	for len(p.words) > 0 && p.err == nil {
		p.verbClause(&r)
	}
	if p.err == nil {
		prog.Verbs = append(prog.Verbs, r)
	}
}

// verbClause reads a condition or a selection of a rule for verbs.
func (p *parser) verbClause(r *VerbRule) {
	w := p.word("a clause")
	if !p.begins(w) {
		return
	}
	switch w {
	case "nic":
		r.NIC = p.word("the name of a NIC")
	case "client":
		p.each("the name of a program, or a process ID", func(c string) { r.Clients = append(r.Clients, c) })
	case "time":
		r.From, r.Until = p.window()
	default:
		if !p.selection(&r.Selection, w) {
			p.fail(w, "is not a condition of rules for verbs%s", suggest.Word(w, verbClauses))
		}
	}
}
