package netsim

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"softroce/internal/htmlpage"
)

// What the page consists of, beside what it shares with others.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"duration": duration, "ns": func(v float64) int64 { return int64(v) }, "rate": rate, "size": size, "bytes": func(n int) string { return size(float64(n)) }, "percent": func(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) },
}).Parse(pageHTML))

var (
	pageScripts = []string{htmlpage.UPlotJS, htmlpage.PlotJS, pageJS}
	pagePolicy  = htmlpage.Policy(pageScripts...)
)

// Bounds of the page. The JSON has all.
const (
	pageSeries = 100 // of a diagram: those with the highest values
	pageRows   = 200 // of a table
	sizeGroups = 20  // of the diagram of slowdowns
	groupFlows = 50  // at least, of such a group: percentiles of fewer say little
)

// WriteHTML writes the result as a page in one file, which needs no network.
func (r *Result) WriteHTML(to io.Writer, title string) error {
	w := bufio.NewWriter(to)
	data, err := json.Marshal(r.diagrams()) // escapes what could end the element
	if err != nil {
		return err
	}
	page := map[string]any{
		"Title": title, "Result": r, "Verdict": r.verdict(), "Summary": r.summary(), "Notices": r.notices(), "Policy": pagePolicy,
		"CSS": template.CSS(htmlpage.UPlotCSS + htmlpage.BaseCSS + pageCSS), "Receivers": r.busiestReceivers(), "Ports": r.busiestPorts(),
	}
	if err := pageTemplate.ExecuteTemplate(w, "top", page); err != nil {
		return err
	}
	fmt.Fprintf(w, "<script type=\"application/json\" id=\"data\">%s</script>\n", data)
	for _, script := range pageScripts {
		fmt.Fprintf(w, "<script>%s</script>\n", script)
	}
	if err := pageTemplate.ExecuteTemplate(w, "bottom", nil); err != nil {
		return err
	}
	return w.Flush()
}

// A verdict is the sentence that the page begins with.
type verdict struct{ Class, Sign, Text string }

func (r *Result) verdict() verdict {
	flows := len(r.Flows)
	running := flows - r.Ended - r.Failed
	switch {
	case r.Deadlock != nil:
		return verdict{"bad", "✗", fmt.Sprintf("PFC deadlock at %v: %s wait for each other, and their pauses do not end.", duration(r.Time), strings.Join(r.Deadlock.Cycle, ", "))}
	case r.Failed > 0:
		return verdict{"bad", "✗", fmt.Sprintf("%d of %d flows failed.", r.Failed, flows)}
	case r.Starved > 0 && r.Ended == 0: // short flows are slow without being starved
		return verdict{"partial", "?", fmt.Sprintf("%d of %d flows got less than a tenth of the mean rate.", r.Starved, flows)}
	case running > 0 && r.Ended > 0:
		return verdict{"good", "✓", fmt.Sprintf("%d of %d flows ended, and %d went on until the end of the run.", r.Ended, flows, running)}
	case running > 0:
		return verdict{"good", "✓", "All flows went on until the end of the run."}
	}
	return verdict{"good", "✓", "All flows ended."}
}

// A fact is a row of the summary.
type fact struct{ Name, Value, More string }

func (r *Result) summary() []fact {
	var dropped, lost, pauses uint64
	for _, p := range r.Ports {
		dropped += p.Dropped
		lost += p.Lost
		pauses += p.PausesSent
	}
	return []fact{
		{"Time", duration(r.Time).String(), fmt.Sprintf("%v of it measured; seed %d", duration(r.Measured), r.Seed)},
		{"Flows", fmt.Sprint(len(r.Flows)), fmt.Sprintf("%d ended, %d failed, %d starved", r.Ended, r.Failed, r.Starved)},
		{"Goodput", rate(r.Goodput), fmt.Sprintf("fairness %.3f", r.Jain)},
		{"Not delivered", fmt.Sprintf("%d packets", dropped+lost), fmt.Sprintf("%d dropped by queues, %d lost on cables", dropped, lost)},
		{"Congestion", fmt.Sprintf("%d marks", r.NICs.Marked), fmt.Sprintf("%d CNPs, %d pauses", r.NICs.CNPs, pauses)},
		{"Sent again", fmt.Sprintf("%d packets", r.NICs.Retransmitted), fmt.Sprintf("after %d sequence NAKs and %d timeouts", r.NICs.SequenceNAKs, r.NICs.Timeouts)},
	}
}

func (r *Result) notices() (l []string) {
	for _, x := range []struct {
		n, most int
		of      string
	}{{len(r.Receivers), pageRows, "receivers in the table"}, {len(r.Ports), pageRows, "ports in the table"},
		{len(r.Series.NICs), pageSeries, "NICs in a diagram"}, {len(r.Series.Ports), pageSeries, "ports in a diagram"}} {
		if x.n > x.most {
			l = append(l, fmt.Sprintf("At most %d of %d %s: those with the highest values. --json has all.", x.most, x.n, x.of))
		}
	}
	return l
}

func (r *Result) busiestReceivers() []Receiver {
	l := r.sortedReceivers()
	return l[:min(pageRows, len(l))]
}

func (r *Result) busiestPorts() []PortResult {
	l := r.sortedPorts()
	return l[:min(pageRows, len(l))]
}

// What the script reads: see page.js. Times are in ns.
type (
	diagrams struct {
		Times    []int64    `json:"times"` // ends of intervals
		Measured int64      `json:"measured"`
		Deadlock bool       `json:"deadlock"`
		Failures [][2]int64 `json:"failures"` // start and end
		Rates    []line     `json:"rates"`
		Queues   []line     `json:"queues"`
		Paused   []line     `json:"paused"`  // share of each interval
		Signals  []line     `json:"signals"` // of all NICs and ports
		Slowdown struct {
			Sizes []int64 `json:"sizes"`
			Lines []line  `json:"lines"`
		} `json:"slowdown"`
	}
	line struct {
		Name   string    `json:"name"`
		Values []float64 `json:"values"`
	}
)

func (r *Result) diagrams() *diagrams {
	s := r.Series
	d := &diagrams{Times: s.Times, Measured: r.Time - r.Measured, Deadlock: r.Deadlock != nil, Failures: [][2]int64{}}
	for _, f := range r.Failures {
		end := r.Time
		if f.End != 0 {
			end = min(f.End, r.Time)
		}
		d.Failures = append(d.Failures, [2]int64{f.Start, end})
	}
	marked, cnps, dropped, lost := line{"marks", nil}, line{"CNPs", nil}, line{"dropped", nil}, line{"lost", nil}
	for _, c := range s.NICs {
		d.Rates = append(d.Rates, newLine(c.NIC, c.Rate))
		cnps.add(c.CNPs)
	}
	for _, c := range s.Ports {
		d.Queues = append(d.Queues, newLine(c.Port, c.Queue))
		paused, begin := newLine(c.Port, c.Paused), int64(0)
		for i := range paused.Values {
			paused.Values[i] /= float64(s.Times[i] - begin)
			begin = s.Times[i]
		}
		d.Paused = append(d.Paused, paused)
		marked.add(c.Marked)
		dropped.add(c.Dropped)
		lost.add(c.Lost)
	}
	d.Rates, d.Queues, d.Paused = highest(d.Rates), highest(d.Queues), highest(d.Paused)
	d.Signals = slices.DeleteFunc([]line{marked, cnps, dropped, lost}, func(l line) bool { return l.Values == nil })
	p50, p95, p99 := line{"p50", nil}, line{"p95", nil}, line{"p99", nil}
	for _, g := range groupBySize(r.Flows) {
		d.Slowdown.Sizes = append(d.Slowdown.Sizes, g.Limit)
		p50.Values, p95.Values, p99.Values = append(p50.Values, g.Slowdown.P50), append(p95.Values, g.Slowdown.P95), append(p99.Values, g.Slowdown.P99)
	}
	if p50.Values != nil {
		d.Slowdown.Lines = []line{p50, p95, p99}
	}
	return d
}

func newLine(name string, values []int64) line {
	l := line{Name: name}
	l.add(values)
	return l
}

// add adds values to those of l.
func (l *line) add(values []int64) {
	if l.Values == nil && len(values) > 0 {
		l.Values = make([]float64, len(values))
	}
	for i, v := range values {
		l.Values[i] += float64(v)
	}
}

// highest returns the lines that are not 0 with the highest values, the highest first.
func highest(l []line) []line {
	l = slices.DeleteFunc(l, func(c line) bool { return c.Values == nil })
	slices.SortStableFunc(l, func(a, b line) int { return cmp.Compare(slices.Max(b.Values), slices.Max(a.Values)) })
	return l[:min(pageSeries, len(l))]
}

// groupBySize divides the flows that have ended by their sizes into groups of about as many.
func groupBySize(flows []FlowResult) (groups []SizeClass) {
	var ended []*FlowResult
	for i := range flows {
		if flows[i].FCT > 0 {
			ended = append(ended, &flows[i])
		}
	}
	slices.SortStableFunc(ended, func(a, b *FlowResult) int { return cmp.Compare(a.Size, b.Size) })
	for least := max(groupFlows, (len(ended)+sizeGroups-1)/sizeGroups); len(ended) > 0; {
		n := least
		if len(ended) < 2*least {
			n = len(ended)
		}
		for n < len(ended) && ended[n].Size == ended[n-1].Size {
			n++
		}
		groups = append(groups, newSizeClass(ended[n-1].Size, ended[:n]))
		ended = ended[n:]
	}
	return groups
}
