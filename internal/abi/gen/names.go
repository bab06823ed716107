package main

import (
	"regexp"
	"strings"
	"unicode"
)

// words are names whose C form does not follow from their capitalization. A longer one precedes its
// prefixes.
var words = []struct{ in, out string }{
	{"CQE", "cqe"}, {"CQ", "cq"}, {"SGEs", "sges"}, {"SGE", "sge"}, {"SGID", "sgid"}, {"SLID", "slid"},
	{"SMLID", "sm_lid"}, {"SMSL", "sm_sl"}, {"SQPSN", "sq_psn"}, {"RQPSN", "rq_psn"}, {"WRID", "wr_id"},
	{"PKey", "pkey"}, {"LKey", "lkey"}, {"RKey", "rkey"}, {"QKey", "qkey"}, {"QPN", "qp_num"},
	{"IOVA", "iova"}, {"FDs", "fds"}, {"GIDs", "gids"}, {"AHAttr", "ah_attr"}, {"IPv6", "ipv6"},
	{"SRQ", "srq"}, {"QPWR", "qp_wr"}, {"PKeys", "pkeys"},
	{"Errno", "error"}, // errno is a macro
}

var plain = regexp.MustCompile(`^([A-Z]+(?:[0-9]+)?$|[A-Z]+(?:[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+[0-9]*)`)

// snake converts a Go name to a C name: MaxSendWR to max_send_wr.
func snake(name string) string {
	var parts []string
next:
	for name != "" {
		for _, w := range words {
			rest, ok := strings.CutPrefix(name, w.in)
			if ok && (rest == "" || !unicode.IsLower(rune(rest[0]))) {
				parts = append(parts, w.out)
				name = rest
				continue next
			}
		}
		m := plain.FindString(name)
		if m == "" {
			m = name[:1]
		}
		// An upper-case run includes the first letter of the next word: RDMAWrite is RDMA and
		// Write.
		if n := len(m); n > 2 && unicode.IsUpper(rune(m[n-2])) && unicode.IsLower(rune(m[n-1])) {
			m = m[:n-2]
		}
		parts = append(parts, strings.ToLower(m))
		name = name[len(m):]
	}
	return strings.Join(parts, "_")
}

var (
	identifier = regexp.MustCompile(`\b[A-Z]\w+\b…?`)
	blanks     = regexp.MustCompile(`\s+`)
)

// translate replaces Go names in a comment by C names. CQArm… means all names with that prefix.
func (d *definition) translate(comment string) string {
	return blanks.ReplaceAllString(strings.TrimSpace(identifier.ReplaceAllStringFunc(comment, func(id string) string {
		if c, ok := d.names[id]; ok {
			return c
		}
		if prefix, ok := strings.CutSuffix(id, "…"); ok {
			return constant(prefix) + "_*"
		}
		return id
	})), " ")
}

func constant(name string) string { return "SOFTROCE_" + strings.ToUpper(snake(name)) }
