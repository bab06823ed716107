package fault

import (
	"maps"
	"math"
	"slices"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/suggest"
	"softroce/packet"
)

// completionClauses are the conditions and selections of rules for completions. vendor_err belongs
// to "fail".
var completionClauses = append([]string{"vendor_err", "qp", "opcode"}, verbClauses...)

// accessClauses are the conditions and selections of rules for accesses.
var accessClauses = append([]string{"qp", "rkey"}, verbClauses...)

// completionRule reads the rest of a rule for completions, or for accesses.
func (p *parser) completionRule(prog *Program, action, noun string) {
	r := CompletionRule{Source: Source{Line: p.line}, Access: noun == nounAccess}
	status := ""
	switch {
	case r.Access:
	case action == "fail":
		status = p.word("a status such as RETRY_EXC_ERR")
		r.Status = ib.WCStatuses[status]
		if all := allStatuses(); !slices.Contains(all, r.Status) {
			p.fail(status, "is not an error that a work request causes%s", suggest.Word(status, statusNames(all)))
		}
	case action == "slow":
		r.Delay = p.duration("a time such as 200ms or 3s")
	case action == "hold":
		r.Hold = true
	}
	for len(p.words) > 0 && p.err == nil {
		p.completionClause(&r)
	}
	for _, o := range r.Opcodes {
		if can := statuses(o); r.Status != ib.WCSuccess && !slices.Contains(can, r.Status) {
			p.fail(status, "is not an error of opcode %s%s", strings.ToLower(o.String()), suggest.Word(status, statusNames(can)))
		}
	}
	p.checkSelection(&r.Selection)
	if p.err == nil {
		prog.Completions = append(prog.Completions, r)
	}
}

// completionClause reads a clause of a rule for completions.
func (p *parser) completionClause(r *CompletionRule) {
	w := p.word("a clause")
	if !p.begins(w) {
		return
	}
	switch {
	case r.Access && w == "rkey":
		p.each("an R_Key", func(k string) {
			r.RKeys = append(r.RKeys, uint32(p.numberIn(k, "an R_Key", math.MaxUint32)))
		})
	case !r.Access && w == "vendor_err":
		if r.Status == ib.WCSuccess {
			p.fail(w, "belongs to \"fail\"")
		}
		r.VendorErr = uint32(p.positive("a number", math.MaxUint32))
	case w == "qp":
		p.each("a QP number", func(q string) {
			r.QPs = append(r.QPs, uint32(p.numberIn(q, "a QP number", packet.PSNMask)))
		})
	case !r.Access && w == "opcode":
		p.each("the opcode of a completion", func(name string) {
			o, ok := completionOpcodes[name]
			if !ok {
				p.fail(name, "is not the opcode of a completion%s", suggest.Word(name, slices.Collect(maps.Keys(completionOpcodes))))
			}
			r.Opcodes = append(r.Opcodes, o)
		})
	default:
		if !p.clientCondition(&r.ClientConditions, w) && !p.selection(&r.Selection, w) {
			what, clauses := "completions", completionClauses
			if r.Access {
				what, clauses = "access", accessClauses
			}
			p.fail(w, "is not a condition of rules for %s%s", what, suggest.Word(w, slices.Clone(clauses)))
		}
	}
}

// allStatuses returns the errors that rules can choose.
func allStatuses() (l []ib.WCStatus) {
	for _, o := range completionOpcodes {
		l = append(l, statuses(o)...)
	}
	return l
}

func statusNames(l []ib.WCStatus) (names []string) {
	for name, s := range ib.WCStatuses {
		if slices.Contains(l, s) {
			names = append(names, name)
		}
	}
	return names
}
