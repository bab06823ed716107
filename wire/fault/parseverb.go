package fault

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/suggest"
)

// verbClauses are the conditions and selections of rules for verbs.
var verbClauses = []string{"nic", "client", "time", "skip", "nth", "every", "chance", "count"}

// What actions apply to beside verbs.
const (
	nounAccess     = "access"
	nounCompletion = "completion"
)

// wordUnreachable takes the place of a reason: the request for a connection has no reply.
const wordUnreachable = "unreachable"

var nouns = map[string][]string{
	"fail": {nounAccess, nounCompletion, VerbConnection}, "slow": {nounCompletion, VerbTimewait}, "hold": {nounCompletion},
}

// verbRule reads the rest of a rule for verbs.
func (p *parser) verbRule(prog *Program, action string) {
	r := VerbRule{Source: Source{Line: p.line}}
	p.checkAlone(action)
	p.each("the name of a verb, such as create_qp", func(name string) {
		if !slices.Contains(VerbNames, name) && !(action == "fail" && name == VerbConnection) && !(action == "slow" && name == VerbTimewait) {
			p.fail(name, "is not a verb%s", suggest.Word(name, append(slices.Clone(VerbNames), nouns[action]...)))
		}
		r.Verbs = append(r.Verbs, name)
	})
	rejects := slices.Contains(r.Verbs, VerbConnection)
	switch {
	case rejects && len(p.words) > 0 && p.words[0] == wordUnreachable:
		p.word("")
		r.Verbs, r.Unreachable = []string{VerbPeer}, true
	case rejects:
		r.Reason = p.rejectReason()
	case action == "fail":
		name := p.word("an error such as ENOMEM")
		e, ok := errnos[name]
		if !ok {
			p.fail(name, "is not the name of an error%s", suggest.Word(name, slices.Sorted(maps.Keys(errnos))))
		}
		r.Errno = e
	case action == "slow":
		r.Delay = p.duration("a time such as 200ms or 3s")
	case action == "hold":
		r.Hold = true
	case action == "close":
		r.Close = true
	}
	for len(p.words) > 0 && p.err == nil {
		p.verbClause(&r)
	}
	p.checkSelection(&r.Selection)
	if p.err == nil {
		prog.Verbs = append(prog.Verbs, r)
	}
}

// checkAlone reports what is not a verb in the list of verbs that is the next word.
func (p *parser) checkAlone(action string) {
	if len(p.words) == 0 {
		return
	}
	names := strings.Split(p.words[0], ",")
	for _, name := range names {
		if len(names) > 1 && slices.Contains(nouns[action], name) {
			p.fail(name, "is no verb, and must stand alone")
		}
	}
}

// rejectReason reads the name or the number of the reason of a REJ.
func (p *parser) rejectReason() ib.RejectReason {
	names := ib.RejectReasons()
	w := p.word("a reason such as consumer_defined")
	if r, ok := names[w]; ok {
		return r
	}
	if n, err := strconv.ParseUint(w, 0, 16); err == nil && n > 0 && n < math.MaxUint16 {
		return ib.RejectReason(n)
	}
	p.fail(w, "is not the reason of a REJ, by name or from 1 to %d%s", math.MaxUint16-1, suggest.Word(w, append(slices.Sorted(maps.Keys(names)), wordUnreachable)))
	return 0
}

// verbClause reads a condition or a selection of a rule for verbs.
func (p *parser) verbClause(r *VerbRule) {
	w := p.word("a clause")
	if !p.begins(w) {
		return
	}
	if !p.clientCondition(&r.ClientConditions, w) && !p.selection(&r.Selection, w) {
		p.fail(w, "is not a condition of rules for verbs%s", suggest.Word(w, slices.Clone(verbClauses)))
	}
}

// maxClientName is the length in bytes of the longest name of a client, as of a process in Linux.
const maxClientName = 15

// clients reads the value of the condition client.
func (p *parser) clients() (names []string) {
	p.each("the name of a program, or a process ID", func(name string) {
		switch {
		case len(name) > maxClientName:
			p.fail(name, "names of programs end after %d characters: did you mean %q?", maxClientName, name[:maxClientName])
		case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }):
			p.fail(name, "other characters than printable ASCII are ? in names of programs")
		}
		names = append(names, name)
	})
	return names
}

// clientCondition reads the rest of a condition that begins with w. It returns false if w begins
// none.
func (p *parser) clientCondition(c *ClientConditions, w string) bool {
	switch w {
	case "nic":
		c.NIC = p.word("the name of a NIC")
	case "client":
		c.Clients = p.clients()
	case "time":
		c.From, c.Until = p.window()
	default:
		return false
	}
	return true
}
