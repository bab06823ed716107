package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A Report is the result of judging a capture. It marshals to JSON.
type Report struct {
	File       string `json:"file,omitempty"`
	RoCE       int    `json:"roce_packets"`              // of RoCE or InfiniBand
	RoCEv1     int    `json:"roce_v1_packets"`           // those of RoCE v1
	InfiniBand int    `json:"infiniband_packets"`        // those of InfiniBand
	Other      int    `json:"other_frames"`              // of other protocols
	Views      int    `json:"seen_on_another_interface"` // packets that are another view of one before, judged once
	Cut        int    `json:"cut_packets"`               // of which the capture has only a part
	Flows      int    `json:"flows"`                     // queue pairs that RC, XRC or UC packets go to
	Beyond     int    `json:"packets_beyond_flows"`      // of more flows than are judged
	RD         int    `json:"rd_packets"`                // of reliable datagrams, manufacturer opcodes and CNPs that are not of RoCEv2, which are not judged

	// What was judged beyond single packets: pairs of opposite flows with their messages, and those
	// of UC. Flows of RC and XRC without an opposite one are listed, the first maxUnpaired of them.
	Connections   int        `json:"connections"`
	Messages      int        `json:"messages"`
	UCMessages    int        `json:"uc_messages"`
	UnpairedFlows int        `json:"unpaired_flows"`
	Unpaired      []Unpaired `json:"unpaired"`

	Services   map[string]int      `json:"services"` // packets of each service
	CM         map[string]int      `json:"cm"`       // messages of the connection manager, by name
	MADs       map[string]int      `json:"mads"`     // other management datagrams, by name
	MigReq     [2]int              `json:"migreq"`   // number of flows with MigReq 0, and with 1
	SentAgain  map[Cause]SentAgain `json:"sent_again"`
	Recoveries []Recovery          `json:"recoveries"` // the first maxRecoveries
	NAKs       int                 `json:"sequence_naks"`
	RNRNAKs    int                 `json:"rnr_naks"`
	Gaps       int                 `json:"gaps"`       // in the PSNs of requests, where they were first sent
	CEMarks    int                 `json:"ce_packets"` // packets with congestion experienced
	CNPs       int                 `json:"cnps"`
	Total      int                 `json:"violations_total"`
	ByRule     map[string]int      `json:"violations_by_rule"`
	Violations []Violation         `json:"violations"` // the first maxViolations
	Notes      []Note              `json:"notes"`
	NotJudged  []string            `json:"not_judged"` // what Incomplete returns
	Verdict    string              `json:"verdict"`

	notes map[noteKey]int // indexes in Notes
}

// A Violation is a packet that breaks a rule.
type Violation struct {
	Packet int    `json:"packet"` // its number in the capture, from 1
	Rule   string `json:"rule"`
	Text   string `json:"text"` // of the rule
	Ref    string `json:"ref"`
	Detail string `json:"detail"` // the value in the packet
	Flow   string `json:"flow"`
	Party  Party  `json:"party"` // who violates the rule
}

// A Note is an observation about a flow that breaks no rule.
type Note struct {
	Kind    string `json:"kind"`
	Text    string `json:"text"`
	Flow    string `json:"flow,omitempty"`
	Count   int    `json:"count"`
	Packets []int  `json:"packets"` // the first maxListed
}

type noteKey struct{ kind, flow string }

func newReport() *Report {
	return &Report{
		Services: map[string]int{}, CM: map[string]int{}, MADs: map[string]int{}, ByRule: map[string]int{}, SentAgain: map[Cause]SentAgain{},
		Unpaired: []Unpaired{}, Recoveries: []Recovery{}, Violations: []Violation{}, Notes: []Note{}, notes: map[noteKey]int{},
	}
}

// violation adds the violation of a rule by a packet, which is a request or a reply.
func (r *Report) violation(rule Rule, no int, flow string, request bool, format string, a ...any) {
	r.Total++
	r.ByRule[rule.ID]++
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, Violation{no, rule.ID, rule.Text, rule.Ref, fmt.Sprintf(format, a...), flow, partyOf(rule, request)})
	}
}

func (r *Report) note(kind Rule, no int, flow string) {
	k := noteKey{kind.ID, flow}
	i, ok := r.notes[k]
	if !ok {
		if len(r.Notes) == maxNotes {
			return
		}
		i = len(r.Notes)
		r.notes[k] = i
		r.Notes = append(r.Notes, Note{Kind: kind.ID, Text: kind.Text, Flow: flow})
	}
	n := &r.Notes[i]
	n.Count++
	if len(n.Packets) < maxListed {
		n.Packets = append(n.Packets, no)
	}
}

// String returns the report as text.
func (r *Report) String() string {
	var b strings.Builder
	r.WriteText(&b)
	return b.String()
}

// WriteText writes the report as text: what was not judged, a line for each violation and note,
// then a summary, with the packets that were sent again and why, and last the verdict.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, why := range r.NotJudged {
		fmt.Fprintf(&b, "%s\n", why)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "packet %d: %s: %s\n    %s, %s: %s [%s]\n", v.Packet, v.Rule, v.Detail, v.Party, v.Flow, v.Text, v.Ref)
	}
	if n := r.Total - len(r.Violations); n > 0 {
		fmt.Fprintf(&b, "and %s\n", count(n, "more violation"))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s: %s\n", n.Kind, n.Text)
		fmt.Fprintf(&b, "    %s%s\n", prefix(n.Flow), numbers(n.Packets, n.Count))
	}
	r.writeSummary(&b)
	fmt.Fprintf(&b, "%s\n", r.Verdict)
	_, err := io.WriteString(w, b.String())
	return err
}

// migReq says which MigReq bit the flows have.
func (r *Report) migReq() string {
	switch zeros, ones := r.MigReq[0], r.MigReq[1]; {
	case zeros == 0 && ones == 0:
		return ""
	case zeros == 0:
		return ", MigReq 1"
	case ones == 0:
		return ", MigReq 0"
	default:
		return fmt.Sprintf(", MigReq 0 in %s, 1 in %s", count(zeros, "flow"), count(ones, "flow"))
	}
}

func (r *Report) writeSummary(b *strings.Builder) {
	if r.File != "" {
		fmt.Fprintf(b, "%s: ", r.File)
	}
	fmt.Fprintf(b, "%s%s, %s, %s%s\n", r.packets(), list(r.Services),
		count(r.Flows, "flow"), count(r.Connections, "connection"), r.migReq())
	if r.Views > 0 {
		fmt.Fprintf(b, "captured more than once: %s, judged once\n", count(r.Views, "packet"))
	}
	if r.Cut > 0 {
		fmt.Fprintf(b, "not judged: %s of which the capture has only a part\n", count(r.Cut, "packet"))
	}
	if len(r.CM) > 0 {
		fmt.Fprintf(b, "connection manager: %s\n", names(r.CM))
	}
	if len(r.MADs) > 0 {
		fmt.Fprintf(b, "management: %s\n", names(r.MADs))
	}
	if again := r.againByCause(); again != "" {
		fmt.Fprintf(b, "sent again: %s\n", again)
		for i := range r.Recoveries {
			fmt.Fprintf(b, "    %v\n", &r.Recoveries[i])
		}
	}
	if lost := r.lost(); lost != "" {
		fmt.Fprintf(b, "lost: %s\n", lost)
	}
	if r.CEMarks+r.CNPs > 0 {
		fmt.Fprintf(b, "congestion: %s marked CE, %s\n", count(r.CEMarks, "packet"), count(r.CNPs, "CNP"))
	}
}

// packets says how many packets there are, and of which network.
func (r *Report) packets() string {
	var l []string
	for _, c := range []struct {
		n    int
		what string
	}{{r.RoCE - r.RoCEv1 - r.InfiniBand, "RoCEv2 packet"}, {r.RoCEv1, "RoCE v1 packet"}, {r.InfiniBand, "InfiniBand packet"}} {
		if c.n > 0 {
			l = append(l, count(c.n, c.what))
		}
	}
	if len(l) == 0 {
		return count(0, "RoCEv2 packet")
	}
	return strings.Join(l, " and ")
}

func prefix(flow string) string {
	if flow == "" {
		return ""
	}
	return flow + ": "
}

// list is names in parentheses, behind a space.
func list(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	return " (" + names(counts) + ")"
}

// names writes counts in the order of their names.
func names(counts map[string]int) string {
	var l []string
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		l = append(l, fmt.Sprintf("%d %s", counts[n], n))
	}
	return strings.Join(l, ", ")
}

func numbers(packets []int, count int) string {
	s := strings.Trim(fmt.Sprint(packets), "[]")
	if n := count - len(packets); n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return "packet " + s
}
