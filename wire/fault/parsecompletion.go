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

// completionRule reads the rest of a rule for completions.
func (p *parser) completionRule(prog *Program, action string) {
	r := CompletionRule{Source: Source{Line: p.line}}
	status := ""
	switch action {
	case "fail":
		status = p.word("a status such as RETRY_EXC_ERR")
		r.Status = ib.WCStatuses[status]
		if all := allStatuses(); !slices.Contains(all, r.Status) {
			p.fail(status, "is not an error that a work request causes%s", suggest.Word(status, statusNames(all)))
		}
	case "slow":
		r.Delay = p.duration("a time such as 200ms or 3s")
	case "hold":
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
	switch w {
	case "vendor_err":
		if r.Status == ib.WCSuccess {
			p.fail(w, "belongs to \"fail\"")
		}
		r.VendorErr = uint32(p.positive("a number", math.MaxUint32))
	case "qp":
		p.each("a QP number", func(q string) {
			r.QPs = append(r.QPs, uint32(p.numberIn(q, "a QP number", packet.PSNMask)))
		})
	case "opcode":
		p.each("the opcode of a completion", func(name string) {
			o, ok := completionOpcodes[name]
			if !ok {
				p.fail(name, "is not the opcode of a completion%s", suggest.Word(name, slices.Collect(maps.Keys(completionOpcodes))))
			}
			r.Opcodes = append(r.Opcodes, o)
		})
	default:
		if !p.clientCondition(&r.ClientConditions, w) && !p.selection(&r.Selection, w) {
			p.fail(w, "is not a condition of rules for completions%s", suggest.Word(w, slices.Clone(completionClauses)))
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
