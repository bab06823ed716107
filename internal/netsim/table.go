package netsim

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the result as tables. Of ports and receivers it has those with most to say; the JSON
// has all.
func (r *Result) Print(w io.Writer, flows bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%v simulated, %v of it measured; seed %d; %d queue pairs\n", duration(r.Time), duration(r.Measured), r.Seed, r.QPs)
	fmt.Fprintf(&b, "flows: %d, %d ended, %d failed, %d starved; goodput %s, fairness %.3f\n", len(r.Flows), r.Ended, r.Failed, r.Starved, rate(r.Goodput), r.Jain)
	dropped, pauses := uint64(0), uint64(0)
	for _, p := range r.Ports {
		dropped += p.Dropped
		pauses += p.PausesSent
	}
	fmt.Fprintf(&b, "network: %d packet hops, %d dropped, %d marked, %d pauses\n", r.Hops, dropped, r.NICs.Marked, pauses)
	fmt.Fprintf(&b, "NICs: %d CNPs, %d packets sent again, %d sequence NAKs, %d timeouts\n", r.NICs.CNPs, r.NICs.Retransmitted, r.NICs.SequenceNAKs, r.NICs.Timeouts)
	r.printFailures(&b)
	r.printSizes(&b)
	r.printReceivers(&b)
	r.printPorts(&b)
	if flows {
		r.printFlows(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rows is how many receivers and ports are printed.
const rows = 10

func table(b *strings.Builder, header string, row func(*tabwriter.Writer)) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\n", strings.ReplaceAll(header, "  ", "\t"))
	row(t)
	t.Flush()
}

func (r *Result) printSizes(b *strings.Builder) {
	if len(r.Sizes) == 0 {
		return
	}
	table(b, "SIZE  FLOWS  FCT p50  p95  p99  max  SLOWDOWN p50  p95  p99  max", func(w *tabwriter.Writer) {
		for _, c := range r.Sizes {
			fmt.Fprintf(w, "%s\t%d", c.Name(), c.Flows)
			for _, v := range []float64{c.FCT.P50, c.FCT.P95, c.FCT.P99, c.FCT.Max} {
				fmt.Fprintf(w, "\t%v", duration(int64(v)))
			}
			for _, v := range []float64{c.Slowdown.P50, c.Slowdown.P95, c.Slowdown.P99, c.Slowdown.Max} {
				fmt.Fprintf(w, "\t%.2f", v)
			}
			fmt.Fprintln(w)
		}
	})
}

// Name returns the class in words.
func (c SizeClass) Name() string {
	if c.Limit > 0 {
		return "to " + size(float64(c.Limit))
	}
	return "more"
}

// sortedReceivers returns the receivers with most flows first.
func (r *Result) sortedReceivers() []Receiver {
	l := slices.Clone(r.Receivers)
	slices.SortStableFunc(l, func(a, b Receiver) int { return cmp.Compare(b.Flows, a.Flows) })
	return l
}

// sortedPorts returns the ports that dropped most, or had the longest queues, first.
func (r *Result) sortedPorts() []PortResult {
	l := slices.Clone(r.Ports)
	slices.SortStableFunc(l, func(a, b PortResult) int {
		return cmp.Or(cmp.Compare(b.Dropped, a.Dropped), cmp.Compare(b.MaxQueue, a.MaxQueue))
	})
	return l
}

func (r *Result) printReceivers(b *strings.Builder) {
	l := r.sortedReceivers()
	table(b, "RECEIVER  FLOWS  GOODPUT  OF PORT  FAIRNESS", func(w *tabwriter.Writer) {
		for _, x := range l[:min(rows, len(l))] {
			fmt.Fprintf(w, "%s\t%d\t%s\t%.1f %%\t%.3f\n", x.NIC, x.Flows, rate(x.Goodput), 100*x.Share, x.Jain)
		}
	})
	more(b, len(l), "receivers")
}

func (r *Result) printPorts(b *strings.Builder) {
	l := r.sortedPorts()
	table(b, "PORT  USED  QUEUE mean  max  DROPPED  MARKED  PAUSES sent  received  PAUSED", func(w *tabwriter.Writer) {
		for _, p := range l[:min(rows, len(l))] {
			fmt.Fprintf(w, "%s\t%.1f %%\t%s\t%s\t%d\t%d\t%d\t%d\t%v\n", p.Port, 100*p.Utilization, size(p.MeanQueue), size(float64(p.MaxQueue)),
				p.Dropped, p.Marked, p.PausesSent, p.PausesReceived, duration(p.Paused))
		}
	})
	more(b, len(l), "ports")
}

func (r *Result) printFlows(b *strings.Builder) {
	table(b, "FROM  TO  SIZE  START  FCT  SLOWDOWN  RATE  STATUS", func(w *tabwriter.Writer) {
		for _, f := range r.Flows {
			length, fct, slowdown, status := "endless", "-", "-", cmp.Or(f.Failed, "running")
			if f.Size > 0 {
				length = size(float64(f.Size))
			}
			if f.FCT > 0 {
				fct, slowdown, status = duration(f.FCT).String(), fmt.Sprintf("%.2f", f.Slowdown), "ended"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n", f.From, f.To, length, duration(f.Start), fct, slowdown, rate(f.Rate), status)
		}
	})
}

func more(b *strings.Builder, n int, what string) {
	if n > rows {
		fmt.Fprintf(b, "and %d more %s: see --json\n", n-rows, what)
	}
}

// duration rounds a time to what a table needs.
func duration(ns int64) time.Duration {
	d := time.Duration(ns)
	switch {
	case d > time.Second:
		return d.Round(time.Millisecond)
	case d > time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d.Round(10 * time.Nanosecond)
}

func rate(bits float64) string {
	switch {
	case bits >= 1e9:
		return fmt.Sprintf("%.2f Gb/s", bits/1e9)
	case bits >= 1e6:
		return fmt.Sprintf("%.1f Mb/s", bits/1e6)
	}
	return fmt.Sprintf("%.0f kb/s", bits/1e3)
}

func size(bytes float64) string {
	switch {
	case bytes >= 1e6:
		return fmt.Sprintf("%.1f MB", bytes/1e6)
	case bytes >= 1e3:
		return fmt.Sprintf("%.0f kB", bytes/1e3)
	}
	return fmt.Sprintf("%.0f B", bytes)
}
