package fault

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/suggest"
	"softroce/packet"
)

// An Error is a mistake in a line of a fault program, or in a filter.
type Error struct {
	Line    int    // 0 in a filter
	Word    string // the wrong word; "" if words are missing at the end of the line
	Problem string // what is wrong and what would be right
}

func (e *Error) Error() string {
	where := ""
	if e.Line != 0 {
		where = fmt.Sprintf("line %d: ", e.Line)
	}
	if e.Word == "" {
		return where + "at the end: " + e.Problem
	}
	return fmt.Sprintf("%s%q: %s", where, e.Word, e.Problem)
}

// Parse reads a program in the fault language. It reads all lines: its error joins an *Error for
// each of the first lines that are wrong.
func Parse(r io.Reader) (*Program, error) {
	prog := &Program{Seed: 1}
	var errs []error
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	line, texts := 0, map[int]string{}
	for in.Scan() {
		line++
		text, _, _ := strings.Cut(in.Text(), "#")
		p := parser{line: line, words: strings.Fields(text)}
		if len(p.words) == 0 {
			continue
		}
		p.statement(prog)
		if p.err != nil {
			errs = append(errs, p.err)
			continue
		}
		texts[line] = strings.TrimSpace(text)
	}
	for _, s := range prog.sources() {
		s.Text = texts[s.Line]
	}
	if err := in.Err(); errors.Is(err, bufio.ErrTooLong) {
		errs = append(errs, fmt.Errorf("line %d: longer than %d bytes", line+1, maxLine))
	} else if err != nil {
		errs = append(errs, err)
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("%d more lines are wrong", more))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return prog, nil
}

// maxLine is the length in bytes of the longest line that Parse reads.
const maxLine = 64 << 10

// maxErrors is the number of wrong lines that Parse reports. In a file that is no fault program,
// every line is wrong.
const maxErrors = 5

// A parser reads the words of a line. After an error it reads no further.
type parser struct {
	line    int
	words   []string // not yet read
	clauses []string // first words of the clauses that were read
	filter  bool     // the line is one of a filter
	err     error
}

// fail sets the error, unless there is one already.
func (p *parser) fail(word, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{p.line, word, fmt.Sprintf(format, args...)}
	}
}

// word returns the next word. want describes it, for the error if there is none.
func (p *parser) word(want string) string {
	if len(p.words) == 0 {
		p.fail("", "%s must follow", want)
	}
	if p.err != nil {
		return ""
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

// programActions are the actions of rules for verbs and completions of programs.
var programActions = []string{"fail", "slow", "hold", "close"}

// statement reads a line: the seed or a rule.
func (p *parser) statement(prog *Program) {
	first := p.word("a rule")
	if first == "seed" {
		if prog.seeded {
			p.fail(first, "is given twice")
		}
		prog.Seed, prog.seeded = p.number("a seed", math.MaxUint64), true
		if len(p.words) > 0 {
			p.fail(p.words[0], "nothing may follow the seed")
		}
		return
	}
	if slices.Contains(programActions, first) {
		noun := ""
		if len(p.words) > 0 {
			noun = p.words[0]
		}
		if slices.Contains(nouns[first], noun) && (noun == nounAccess || noun == nounCompletion) {
			p.words = p.words[1:]
			p.completionRule(prog, first, noun)
		} else {
			p.verbRule(prog, first)
		}
		return
	}
	a := slices.Index(actionNames[:], first)
	if a < 0 {
		p.fail(first, "a line begins with an action or the seed%s", suggest.Word(first, slices.Concat(actionNames[:], programActions, []string{"seed"})))
		return
	}
	r := Rule{Action: Action(a), Source: Source{Line: p.line}}
	p.argument(&r)
	for len(p.words) > 0 && p.err == nil {
		p.clause(&r)
	}
	if p.err == nil {
		p.check(&r)
	}
	if p.err == nil {
		prog.Rules = append(prog.Rules, r)
	}
}

// argument reads the words that directly follow an action.
func (p *parser) argument(r *Rule) {
	switch r.Action {
	case Duplicate:
		if p.digitNext() {
			r.Copies = int(p.positive("a number of copies", 1000))
		}
	case Reorder:
		if p.digitNext() {
			r.By = int(p.positive("a number of packets", MaxQueued))
		}
	case Delay:
		r.Delay = p.duration("a time such as 20us or 1.5ms")
	case Set:
		p.field(r)
	case Rate:
		r.Rate = p.rate()
	}
}

func (p *parser) field(r *Rule) {
	name := p.word("the name of a header field")
	var names []string
	for i, f := range fieldInfos {
		names = append(names, f.name)
		if f.name == name {
			r.Field = Field(i)
			r.Value = p.number("a value for "+name, ^uint64(0)>>(64-f.bits))
			return
		}
	}
	p.fail(name, "is not a header field%s", suggest.Word(name, names))
}

// actionClauses are the clauses that belong to one action.
var actionClauses = map[string]Action{
	"within": Reorder, "jitter": Delay, "bit": Corrupt, "queue": Rate,
}

// commonClauses are the conditions and selections, which every action has.
var commonClauses = []string{
	"nic", "send", "receive", "client", "qp", "opcode", "kind", "syndrome", "psn", "cm", "src", "dst", "roce", "time",
	"skip", "nth", "every", "chance", "count",
}

// begins notes the first word of a clause. Only "kind" may be given twice.
func (p *parser) begins(w string) bool {
	if slices.Contains(p.clauses, w) && w != "kind" {
		p.fail(w, "is given twice; separate several values with commas")
		return false
	}
	p.clauses = append(p.clauses, w)
	return true
}

// clause reads a clause: a parameter of the action, a condition, or a selection.
func (p *parser) clause(r *Rule) {
	w := p.word("a clause")
	if p.filter && !slices.Contains(filterClauses(), w) {
		p.fail(w, "is not a condition of a filter%s", suggest.Word(w, filterClauses()))
		return
	}
	if a, ok := actionClauses[w]; ok && a != r.Action {
		p.fail(w, "belongs to %q, not to %q", a, r.Action)
		return
	}
	if !p.begins(w) {
		return
	}
	switch w {
	case "within":
		r.Within = p.duration("a time such as 1ms")
	case "jitter":
		r.Jitter = p.duration("a time such as 5us")
	case "bit":
		r.Bit = 1 + int(p.number("the number of a bit of a packet, counted from the first of the BTH", maxBits-1))
	case "queue":
		r.Queue = int(p.positive("a number of packets", MaxQueued))
	case "nic":
		r.NIC = p.word("the name of a NIC")
	case "send":
		r.Direction |= Sent
	case "receive":
		r.Direction |= Received
	case "client":
		r.Clients = p.clients()
	default:
		p.condition(r, w)
	}
}

// maxBits is the number of bits of the longest packet, from the BTH to the ICRC.
var maxBits = uint64(8 * (packet.MaxHeaderLen + ib.MTU4096.Bytes() + packet.ICRCLen))

// selection reads the rest of a selection that begins with w. It returns false if w begins none.
func (p *parser) selection(r *Selection, w string) bool {
	switch w {
	case "skip":
		r.Skip = p.positive("a number of packets", math.MaxUint64)
	case "nth":
		p.each("a number, the first packet that matches being 1", func(s string) {
			n := p.numberIn(s, "a number", math.MaxUint64)
			if n == 0 {
				p.fail(s, "the first packet is number 1")
			}
			r.Nth = append(r.Nth, n)
		})
	case "every":
		r.Every = p.positive("a number of packets", math.MaxUint64)
	case "chance":
		r.Chance = p.percentage()
	case "count":
		r.Count = p.positive("a number of packets", math.MaxUint64)
	default:
		return false
	}
	return true
}
