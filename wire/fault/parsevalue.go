package fault

import (
	"strconv"
	"strings"
	"time"
)

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

func (p *parser) digitNext() bool {
	return len(p.words) > 0 && p.words[0][0] >= '0' && p.words[0][0] <= '9'
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
