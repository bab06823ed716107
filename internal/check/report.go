package check

import (
	"fmt"
	"io"
	"sort"
	"strings"
)

// A Report is the result of judging a capture. It marshals to JSON.
type Report struct {
	File        string         `json:"file,omitempty"`
	RoCE        int            `json:"roce_packets"`
	Other       int            `json:"other_frames"` // of other protocols
	Flows       int            `json:"flows"`        // queue pairs that RC, XRC or UC packets go to
	Connections int            `json:"connections"`  // pairs of opposite flows
	Services    map[string]int `json:"services"`     // packets of each service
	CM          map[string]int `json:"cm"`           // messages of the connection manager, by name
	MigReq      [2]int         `json:"migreq"`       // number of flows with MigReq 0, and with 1
	Total       int            `json:"violations_total"`
	ByRule      map[string]int `json:"violations_by_rule"`
	Violations  []Violation    `json:"violations"` // the first maxViolations
	Notes       []Note         `json:"notes"`

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
		Services: map[string]int{}, CM: map[string]int{}, ByRule: map[string]int{},
		Violations: []Violation{}, Notes: []Note{}, notes: map[noteKey]int{},
	}
}

func (r *Report) violation(rule Rule, no int, flow string, format string, a ...any) {
	r.Total++
	r.ByRule[rule.ID]++
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, Violation{no, rule.ID, rule.Text, rule.Ref, fmt.Sprintf(format, a...), flow})
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

// WriteText writes the report as text: a line for each violation and note, then a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "packet %d: %s: %s\n    %s: %s [%s]\n", v.Packet, v.Rule, v.Detail, v.Flow, v.Text, v.Ref)
	}
	if n := r.Total - len(r.Violations); n > 0 {
		fmt.Fprintf(&b, "and %d more violations\n", n)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s: %s\n", n.Kind, n.Text)
		fmt.Fprintf(&b, "    %s%s\n", prefix(n.Flow), numbers(n.Packets, n.Count))
	}
	if r.File != "" {
		fmt.Fprintf(&b, "%s: ", r.File)
	}
	fmt.Fprintf(&b, "%d RoCEv2 packets%s, %d flows, %d connections, MigReq 0 in %d and 1 in %d flows\n",
		r.RoCE, list(r.Services), r.Flows, r.Connections, r.MigReq[0], r.MigReq[1])
	if len(r.CM) > 0 {
		fmt.Fprintf(&b, "connection manager:%s\n", strings.Trim(list(r.CM), "()"))
	}
	fmt.Fprintf(&b, "%d violations%s\n", r.Total, list(r.ByRule))
	_, err := io.WriteString(w, b.String())
	return err
}

func prefix(flow string) string {
	if flow == "" {
		return ""
	}
	return flow + ": "
}

// list writes counts in the order of their names, in parentheses.
func list(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	var names []string
	for n := range counts {
		names = append(names, n)
	}
	sort.Strings(names)
	for i, n := range names {
		names[i] = fmt.Sprintf("%d %s", counts[n], n)
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func numbers(packets []int, count int) string {
	s := strings.Trim(fmt.Sprint(packets), "[]")
	if n := count - len(packets); n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return "packet " + s
}
