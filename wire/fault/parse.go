package fault

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

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

func (p *parser) digitNext() bool {
	return len(p.words) > 0 && p.words[0][0] >= '0' && p.words[0][0] <= '9'
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

// condition reads the rest of a condition or a selection that begins with w.
func (p *parser) condition(r *Rule, w string) {
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
		var all SyndromeSet
		p.each("ack, nak or rnr", func(s string) {
			c, ok := syndromeNames[s]
			if !ok {
				p.fail(s, "must be ack, nak or rnr")
			}
			all |= c
		})
		r.restrictSyndrome(all)
	case "psn":
		p.each("a PSN or a range such as 5..9", func(s string) { p.psn(r, s) })
	case "cm":
		p.each("a message of the connection manager", func(s string) { p.message(r, s) })
	case "src", "dst":
		p.address(r, w)
	case "roce":
		p.roce(r)
	case "time":
		r.From, r.Until = p.window()
	default:
		if !p.selection(&r.Selection, w) {
			known := slices.Clone(commonClauses)
			for name, a := range actionClauses {
				if a == r.Action {
					known = append(known, name)
				}
			}
			p.fail(w, "is not a condition of %q%s", r.Action, suggest.Word(w, known))
		}
	}
}

// roce reads a version of RoCE.
func (p *parser) roce(r *Rule) {
	switch w := p.word("v1 or v2"); w {
	case "v1":
		r.RoCE = 1
	case "v2":
		r.RoCE = 2
	default:
		p.fail(w, "must be v1 or v2")
	}
}

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

// maxBits is the number of bits of the longest packet, from the BTH to the ICRC.
var maxBits = uint64(8 * (packet.MaxHeaderLen + ib.MTU4096.Bytes() + packet.ICRCLen))

// check reports mistakes that only the whole rule shows: that it cannot match a packet, or cannot
// change one that it matches.
func (p *parser) check(r *Rule) {
	restricted := slices.Contains(p.clauses, "opcode") || slices.Contains(p.clauses, "kind")
	if restricted && r.Opcodes.empty() {
		p.fail("", "no packet meets all of opcode, kind and syndrome")
	}
	if r.Action == Stall && r.Until == 0 {
		p.fail("", "stall needs the time when it ends, such as time 5s..7s or time ..2s")
	}
	if r.Action == Mark && r.RoCE == 1 {
		p.fail("", "packets of RoCE v1 have no ECN bits to mark")
	}
	if r.Src.IsValid() && r.Dst.IsValid() && r.Src.Addr().Is4() != r.Dst.Addr().Is4() {
		p.fail(r.Dst.String(), "no packet has a source in %v and such a destination: one is IPv4, the other IPv6", r.Src)
	}
	opcodes := r.Opcodes
	if len(r.Messages) > 0 {
		const datagram = packet.Opcode(packet.UD) | packet.SendOnly
		switch {
		case restricted && !opcodes.has(datagram):
			p.fail("", "messages of the connection manager have opcode %v", datagram)
		case len(r.QPs) > 0 && !slices.Contains(r.QPs, ib.GSIQPN):
			p.fail("", "messages of the connection manager are for QP %d", ib.GSIQPN)
		case len(r.Clients) > 0:
			p.fail("", "messages of the connection manager are of no client")
		}
		opcodes = Opcodes(datagram)
	}
	if r.Action == Set && !opcodes.empty() && !opcodes.any(r.Field.in) {
		p.fail("", "packets of opcode %v have no %v", opcodes, r.Field)
	}
	p.checkSelection(&r.Selection)
}

// checkSelection reports a selection that picks nothing.
func (p *parser) checkSelection(s *Selection) {
	if len(s.Nth) > 0 && s.Every > 0 && !slices.ContainsFunc(s.Nth, func(n uint64) bool { return n%s.Every == 0 }) {
		p.fail("", "no number of nth is a multiple of %d, as every demands", s.Every)
	}
}

// each calls f for each part of a word that commas separate.
func (p *parser) each(want string, f func(string)) {
	w := p.word(want)
	for _, part := range strings.Split(w, ",") {
		if part == "" {
			p.fail(w, "must be %s, or several separated by commas", want)
		}
		if p.err == nil {
			f(part)
		}
	}
}

func (p *parser) number(want string, limit uint64) uint64 {
	return p.numberIn(p.word(want), want, limit)
}

func (p *parser) numberIn(w, want string, limit uint64) uint64 {
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

func (p *parser) positive(want string, limit uint64) uint64 {
	w := p.word(want)
	n := p.numberIn(w, want, limit)
	if n == 0 {
		p.fail(w, "must be %s, at least 1", want)
	}
	return n
}

func (p *parser) duration(want string) time.Duration {
	w := p.word(want)
	d, err := time.ParseDuration(w)
	if p.err == nil && (err != nil || d < 0 || d > time.Hour) {
		p.fail(w, "must be %s, at most 1h", want)
	}
	return d
}

func (p *parser) percentage() float64 {
	w := p.word("a percentage such as 0.5%")
	n, percent := strings.CutSuffix(w, "%")
	c, err := strconv.ParseFloat(n, 64)
	if p.err == nil && (err != nil || !percent || !(c > 0 && c <= 100)) {
		p.fail(w, "must be a percentage above 0%% and up to 100%%, such as 0.5%%")
	}
	return c / 100
}

// rateUnits lists the units of rates. "bit" is last because the others end with it.
var rateUnits = []struct {
	suffix string
	bits   float64 // per second
}{{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"bit", 1}}

func (p *parser) rate() uint64 {
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

// restrict sets the opcodes of r to s, or to the intersection with s if a clause before set them.
func (r *Rule) restrict(s OpcodeSet, had bool) {
	for i := range s {
		if had {
			s[i] &= r.Opcodes[i]
		}
	}
	r.Opcodes = s
}

// restricted reports whether a clause before the current one restricts the opcodes.
func (p *parser) restricted() bool {
	before := p.clauses[:len(p.clauses)-1]
	return slices.Contains(before, "opcode") || slices.Contains(before, "kind")
}

func (p *parser) opcodes(r *Rule) {
	var all OpcodeSet
	p.each("the name of an opcode", func(name string) {
		s := opcodesNamed(name)
		if n, err := strconv.ParseUint(name, 0, 8); err == nil {
			s.add(packet.Opcode(n))
		}
		if s.empty() {
			var names []string
			opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool {
				names = append(names, in.Name)
				if _, bare, ok := strings.Cut(in.Name, "_"); ok {
					names = append(names, bare)
				}
				return false
			})
			p.fail(name, "is not an opcode%s", suggest.Word(name, names))
		}
		for i := range all {
			all[i] |= s[i]
		}
	})
	r.restrict(all, p.restricted())
}

func (p *parser) kinds(r *Rule) {
	var all OpcodeSet
	var syndrome SyndromeSet
	allACKs := false // with any syndrome
	p.each("a kind of packet", func(name string) {
		is, ok := kindNames[name]
		if !ok {
			var names []string
			for n := range kindNames {
				names = append(names, n)
			}
			p.fail(name, "is not a kind of packet%s", suggest.Word(name, names))
			return
		}
		syndrome |= syndromeNames[name]
		allACKs = allACKs || syndromeNames[name] == 0 && is(packet.Opcode(packet.Acknowledge).Info())
		s := opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool { return is(in) })
		for i := range all {
			all[i] |= s[i]
		}
	})
	r.restrict(all, p.restricted())
	if !allACKs && syndrome != 0 {
		r.restrictSyndrome(syndrome)
	}
}

// restrictSyndrome restricts the syndromes of an ACKNOWLEDGE to some classes, beside those that a
// clause before demands. If no class is left, an ACKNOWLEDGE does not match.
func (r *Rule) restrictSyndrome(c SyndromeSet) {
	if r.Syndrome != 0 {
		c &= r.Syndrome
	}
	if c == 0 {
		for o := range 256 {
			if op := packet.Opcode(o); op.Info().Kind == packet.KindAck {
				r.Opcodes.remove(op)
			}
		}
		return
	}
	r.Syndrome = c
}

func (p *parser) psn(r *Rule, s string) {
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

func (p *parser) message(r *Rule, name string) {
	var names []string
	for _, a := range ib.CMAttributes() {
		if cmName(a) == name {
			r.Messages = append(r.Messages, a)
			return
		}
		names = append(names, cmName(a))
	}
	p.fail(name, "is not a message of the connection manager%s", suggest.Word(name, names))
}

func (p *parser) address(r *Rule, which string) {
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

// maxWindow bounds the times of rules, so that they can be added to the time of a link.
const maxWindow = 87600 * time.Hour // ten years

// window reads the condition "time".
func (p *parser) window() (from, until time.Duration) {
	w := p.word("a range of times such as 1s..2s")
	first, last, ok := strings.Cut(w, "..")
	var err, err2 error
	if first != "" {
		from, err = time.ParseDuration(first)
	}
	if last != "" {
		until, err2 = time.ParseDuration(last)
	}
	if p.err == nil && (!ok || err != nil || err2 != nil || from < 0 || last != "" && until <= from || max(from, until) > maxWindow) {
		p.fail(w, "must be a range of times since the start, such as 1s..2s, ..500ms or 3s.., at most 87600h")
	}
	return from, until
}

// mappedBits is the length of the prefix of all IPv4-mapped addresses, ::ffff:0.0.0.0/96.
const mappedBits = 96

// parsePrefix reads a prefix, or an address as the prefix that holds nothing else. An IPv4-mapped
// address, as GIDs have it, is that of IPv4.
func parsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err == nil && p.Addr().Is4In6() && p.Bits() >= mappedBits {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
		}
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	a = a.Unmap()
	return a.Prefix(a.BitLen())
}
