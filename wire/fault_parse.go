package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/packet"
)

// A FaultError tells what is wrong in a line of a fault file, and what would be right.
type FaultError struct {
	Line    int
	Word    string // that cannot stand there; "" at the end of the line
	Problem string
}

func (e *FaultError) Error() string {
	if e.Word == "" {
		return fmt.Sprintf("line %d: at its end: %s", e.Line, e.Problem)
	}
	return fmt.Sprintf("line %d: %q: %s", e.Line, e.Word, e.Problem)
}

// ParseFaults reads a program in the fault language, which docs/reference/fault-language.md describes. It
// reads all of it; the error joins a *FaultError for each line that is wrong.
func ParseFaults(r io.Reader) (*FaultProgram, error) {
	prog := &FaultProgram{Seed: 1}
	var errs []error
	in := bufio.NewScanner(r)
	line := 0
	for in.Scan() {
		line++
		text, _, _ := strings.Cut(in.Text(), "#")
		p := faultParser{line: line, words: strings.Fields(text)}
		if len(p.words) == 0 {
			continue
		}
		p.statement(prog)
		if p.err != nil {
			errs = append(errs, p.err)
			continue
		}
		if n := len(prog.Rules); n > 0 && prog.Rules[n-1].Line == line {
			prog.Rules[n-1].Text = strings.TrimSpace(text)
		}
	}
	if err := in.Err(); err != nil {
		errs = append(errs, fmt.Errorf("line %d: %w", line+1, err))
	}
	if more := len(errs) - maxFaultErrors; more > 0 {
		errs = append(errs[:maxFaultErrors], fmt.Errorf("%d more lines are wrong", more))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return prog, nil
}

// maxFaultErrors is how many wrong lines ParseFaults tells of: a file that is no fault
// program at all has as many as lines.
const maxFaultErrors = 5

// A faultParser reads the words of a line. After an error it reads no more.
type faultParser struct {
	line  int
	words []string
	said  []string // clauses that were read
	err   error
}

func (p *faultParser) fail(word, format string, args ...any) {
	if p.err == nil {
		p.err = &FaultError{p.line, word, fmt.Sprintf(format, args...)}
	}
}

// word takes the next word; want says what it should be.
func (p *faultParser) word(want string) string {
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

func (p *faultParser) statement(prog *FaultProgram) {
	first := p.word("a rule")
	if first == "seed" {
		prog.Seed = p.number("a seed", math.MaxUint64)
		if len(p.words) > 0 {
			p.fail(p.words[0], "nothing may follow the seed")
		}
		return
	}
	a := slices.Index(actionNames[:], first)
	if a < 0 {
		p.fail(first, "a line begins with an action or the seed%s", suggest(first, append(actionNames[:], "seed")))
		return
	}
	r := FaultRule{Action: FaultAction(a), Line: p.line}
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

// argument reads what belongs to the action.
func (p *faultParser) argument(r *FaultRule) {
	switch r.Action {
	case FaultDuplicate:
		if p.digitNext() {
			r.Copies = int(p.positive("a number of copies", 1000))
		}
	case FaultReorder:
		if p.digitNext() {
			r.By = int(p.positive("a number of packets", maxHeld))
		}
	case FaultDelay:
		r.Delay = p.duration("a time such as 20us or 1.5ms")
	case FaultSet:
		p.field(r)
	case FaultRate:
		r.Rate = p.rate()
	}
}

func (p *faultParser) digitNext() bool {
	return len(p.words) > 0 && p.words[0][0] >= '0' && p.words[0][0] <= '9'
}

// ownClauses belong to one action each.
var ownClauses = map[string]FaultAction{
	"within": FaultReorder, "jitter": FaultDelay, "bit": FaultCorrupt, "queue": FaultRate,
}

var commonClauses = []string{
	"nic", "send", "receive", "qp", "opcode", "kind", "syndrome", "psn", "src", "dst", "time",
	"skip", "nth", "every", "chance", "count",
}

func (p *faultParser) clause(r *FaultRule) {
	w := p.word("a clause")
	if a, ok := ownClauses[w]; ok && a != r.Action {
		p.fail(w, "belongs to %q, not to %q", a, r.Action)
		return
	}
	if slices.Contains(p.said, w) && w != "kind" {
		p.fail(w, "stands twice; more than one value is written with commas")
		return
	}
	p.said = append(p.said, w)
	switch w {
	case "within":
		r.Within = p.duration("a time such as 1ms")
	case "jitter":
		r.Jitter = p.duration("a time such as 5us")
	case "bit":
		r.Bit = 1 + int(p.number("the number of a bit, counted from the first of the BTH", 1<<19))
	case "queue":
		r.Queue = int(p.positive("a number of packets", maxHeld))
	case "nic":
		r.NIC = p.word("the name of a NIC")
	case "send":
		r.Direction |= Sent
	case "receive":
		r.Direction |= Received
	default:
		p.condition(r, w)
	}
}

func (p *faultParser) condition(r *FaultRule, w string) {
	switch w {
	case "qp":
		p.each("a QP number", func(q string) {
			r.QPs = append(r.QPs, uint32(p.numberIn(q, "a QP number", packet.PSNMask)))
		})
	case "opcode":
		p.opcodes(r)
	case "kind":
		p.kinds(r)
	case "syndrome":
		p.each("ack, nak or rnr", func(s string) {
			c, ok := syndromeNames[s]
			if !ok {
				p.fail(s, "must be ack, nak or rnr")
			}
			r.Syndrome |= c
		})
	case "psn":
		p.each("a PSN or a range such as 5..9", func(s string) { p.psn(r, s) })
	case "src", "dst":
		p.address(r, w)
	case "time":
		p.window(r)
	default:
		p.pick(r, w)
	}
}

func (p *faultParser) pick(r *FaultRule, w string) {
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
		known := slices.Clone(commonClauses)
		for own, a := range ownClauses {
			if a == r.Action {
				known = append(known, own)
			}
		}
		p.fail(w, "is no condition of %q%s", r.Action, suggest(w, known))
	}
}

// check says what only the whole rule can tell.
func (p *faultParser) check(r *FaultRule) {
	if (slices.Contains(p.said, "opcode") || slices.Contains(p.said, "kind")) && r.Opcodes.empty() {
		p.fail("", "no opcode is all that opcode and kind ask for")
	}
}

// each calls f for the parts of a word between commas.
func (p *faultParser) each(want string, f func(string)) {
	w := p.word(want)
	for _, part := range strings.Split(w, ",") {
		if part == "" {
			p.fail(w, "must be %s, or several with commas between them", want)
		}
		if p.err == nil {
			f(part)
		}
	}
}

func (p *faultParser) number(want string, limit uint64) uint64 {
	return p.numberIn(p.word(want), want, limit)
}

func (p *faultParser) numberIn(w, want string, limit uint64) uint64 {
	if p.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(w, 0, 64)
	if err != nil {
		p.fail(w, "must be %s, decimal or with 0x", want)
	} else if n > limit {
		p.fail(w, "must be %s, at most %d", want, limit)
	}
	return n
}

func (p *faultParser) positive(want string, limit uint64) uint64 {
	w := p.word(want)
	n := p.numberIn(w, want, limit)
	if n == 0 {
		p.fail(w, "must be %s, at least 1", want)
	}
	return n
}

func (p *faultParser) duration(want string) time.Duration {
	w := p.word(want)
	d, err := time.ParseDuration(w)
	if p.err == nil && (err != nil || d < 0 || d > time.Hour) {
		p.fail(w, "must be %s, at most 1h", want)
	}
	return d
}

func (p *faultParser) percentage() float64 {
	w := p.word("a percentage such as 0.5%")
	n, percent := strings.CutSuffix(w, "%")
	c, err := strconv.ParseFloat(n, 64)
	if p.err == nil && (err != nil || !percent || !(c > 0 && c <= 100)) {
		p.fail(w, "must be a percentage above 0%% and up to 100%%, such as 0.5%%")
	}
	return c / 100
}

// rateUnits are in bits a second. The longest suffix comes first.
var rateUnits = []struct {
	suffix string
	bits   float64
}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}}

func (p *faultParser) rate() uint64 {
	w := p.word("a rate such as 100Mbit or 2.5Gbit")
	s := strings.TrimSuffix(strings.ToLower(w), "/s")
	for _, u := range rateUnits {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			if f, err := strconv.ParseFloat(n, 64); err == nil && f*u.bits >= 1e3 && f*u.bits <= 1e13 {
				return uint64(f*u.bits + 0.5)
			}
			break
		}
	}
	p.fail(w, "must be a rate such as 100Mbit or 2.5Gbit, from 1kbit to 10000Gbit")
	return 0
}

func (p *faultParser) field(r *FaultRule) {
	name := p.word("the name of a header field")
	var names []string
	for i, f := range fieldPlaces {
		names = append(names, f.name)
		if f.name == name {
			r.Field = HeaderField(i)
			r.Value = p.number("a value for "+name, ^uint64(0)>>(64-f.bits))
			return
		}
	}
	p.fail(name, "is no header field%s", suggest(name, names))
}

// restrict takes the opcodes that both r had, if it had any, and s has.
func (r *FaultRule) restrict(s OpcodeSet, had bool) {
	for i := range s {
		if had {
			s[i] &= r.Opcodes[i]
		}
	}
	r.Opcodes = s
}

// restricted reports whether a clause before the present one chose opcodes.
func (p *faultParser) restricted() bool {
	before := p.said[:len(p.said)-1]
	return slices.Contains(before, "opcode") || slices.Contains(before, "kind")
}

func (p *faultParser) opcodes(r *FaultRule) {
	var all OpcodeSet
	p.each("the name of an opcode", func(name string) {
		s := opcodesNamed(name)
		if n, err := strconv.ParseUint(name, 0, 8); err == nil {
			s.add(packet.Opcode(n))
		}
		if s.empty() {
			var names []string
			opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool {
				_, bare, _ := strings.Cut(in.Name, "_")
				names = append(names, in.Name, bare)
				return false
			})
			p.fail(name, "is no opcode%s", suggest(strings.ToUpper(name), names))
		}
		for i := range all {
			all[i] |= s[i]
		}
	})
	r.restrict(all, p.restricted())
}

func (p *faultParser) kinds(r *FaultRule) {
	var all OpcodeSet
	var syndrome SyndromeClass
	allACKs := false // whatever their syndrome
	p.each("a kind of packet", func(name string) {
		is, ok := kindNames[name]
		if !ok {
			var names []string
			for n := range kindNames {
				names = append(names, n)
			}
			p.fail(name, "is no kind of packet%s", suggest(name, names))
			return
		}
		syndrome |= syndromeNames[name]
		allACKs = allACKs || syndromeNames[name] == 0 && is(packet.Opcode(packet.Acknowledge).Info())
		s := opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool { return is(in) })
		for i := range all {
			all[i] |= s[i]
		}
	})
	if !allACKs {
		r.Syndrome |= syndrome
	}
	r.restrict(all, p.restricted())
}

func (p *faultParser) psn(r *FaultRule, s string) {
	first, last, isRange := strings.Cut(s, "..")
	if first == "" || isRange && last == "" {
		p.fail(s, "must be a PSN or a range such as 5..9")
	}
	x := PSNRange{First: uint32(p.numberIn(first, "a PSN", packet.PSNMask))}
	x.Last = x.First
	if isRange {
		x.Last = uint32(p.numberIn(last, "a PSN", packet.PSNMask))
	}
	r.PSNs = append(r.PSNs, x)
}

func (p *faultParser) address(r *FaultRule, which string) {
	w := p.word("an address or a prefix")
	prefix, err := parsePrefix(w)
	if p.err == nil && err != nil {
		p.fail(w, "must be an address or a prefix, such as 192.0.2.1 or 2001:db8::/64")
	}
	if which == "src" {
		r.Src = prefix
	} else {
		r.Dst = prefix
	}
}

func (p *faultParser) window(r *FaultRule) {
	w := p.word("a range of times such as 1s..2s")
	from, until, ok := strings.Cut(w, "..")
	var err, err2 error
	if r.From = 0; from != "" {
		r.From, err = time.ParseDuration(from)
	}
	if r.Until = 0; until != "" {
		r.Until, err2 = time.ParseDuration(until)
	}
	if p.err == nil && (!ok || err != nil || err2 != nil || r.From < 0 || until != "" && r.Until <= r.From) {
		p.fail(w, "must be a range of times since the start, such as 1s..2s, ..500ms or 3s..")
	}
}

// suggest names the word that was probably meant, or all that there are.
func suggest(word string, known []string) string {
	slices.Sort(known)
	known = slices.Compact(known)
	best, least := "", 3
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ": " + strings.Join(known, ", ")
}

// distance is the number of letters to insert, delete or replace to make b from a.
func distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
