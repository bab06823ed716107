package fault

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/internal/ib"
	"softroce/internal/suggest"
	"softroce/packet"
)

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
