package perf

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is the result of a run.
type Result struct {
	Op       Op      `json:"op"`
	Type     Type    `json:"type"`
	Size     int     `json:"size"`
	QPs      int     `json:"qps"`
	Depth    int     `json:"depth"`
	MTU      int     `json:"mtu"`
	Local    Address `json:"local"`
	Remote   Address `json:"remote"`
	Seconds  float64 `json:"seconds"` // the time in which Messages and Bytes were counted
	Messages uint64  `json:"messages"`
	Bytes    uint64  `json:"bytes"`

	Bandwidth   float64 `json:"bandwidth_gbps"` // 10^9 bits of payload per second
	MessageRate float64 `json:"messages_per_second"`

	Latency *Latency `json:"latency_us,omitempty"`
	Checked bool     `json:"data_checked"`

	Interrupted bool `json:"interrupted,omitempty"` // before the durations asked for had passed

	// For Send on UC and UD: the messages of the whole run, and those that the server received.
	Sent     uint64  `json:"sent,omitempty"`
	Received *uint64 `json:"received,omitempty"`
}

// Address names the NIC and GID of one side of a run.
type Address struct {
	Device string `json:"device"`
	GID    string `json:"gid"`
}

// Latency is the distribution of the time from posting to completion, in microseconds, with one
// operation outstanding.
type Latency struct {
	Samples int     `json:"samples"`
	Min     float64 `json:"min"`
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
	Max     float64 `json:"max"`
}

// summarize sorts samples and returns their distribution, or nil if there are none.
func summarize(samples []time.Duration) *Latency {
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, s := range samples {
		sum += s
	}
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	// The p-th percentile is the smallest sample that p percent of all samples do not exceed.
	at := func(perMille int) float64 {
		i := (len(samples)*perMille + 999) / 1000
		return micros(samples[max(i-1, 0)])
	}
	return &Latency{
		Samples: len(samples), Min: micros(samples[0]), Mean: micros(sum) / float64(len(samples)),
		P50: at(500), P90: at(900), P99: at(990), P999: at(999), Max: micros(samples[len(samples)-1]),
	}
}

// setCount sets the bandwidth and rate from the messages completed in elapsed.
func (r *Result) setCount(messages uint64, elapsed time.Duration) {
	r.Messages, r.Bytes = messages, messages*uint64(r.Size)
	r.Seconds = elapsed.Seconds()
	if r.Seconds > 0 {
		r.Bandwidth = float64(r.Bytes) * 8 / r.Seconds / 1e9
		r.MessageRate = float64(messages) / r.Seconds
	}
}

// WriteText writes r as text.
func (r *Result) WriteText(w io.Writer) error {
	op := string(r.Op)
	if r.Type != RC {
		op = string(r.Type) + " " + op
	}
	fmt.Fprintf(w, "%s %s -> %s  %s, %s, depth %d, path MTU %d\n", op, r.Local, r.Remote, count(r.Size, "byte"), count(r.QPs, "QP"), r.Depth, r.MTU)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	head, row := "", ""
	if r.Seconds > 0 || !r.Interrupted {
		head, row = "  messages\tGb/s\tmessages/s\t", fmt.Sprintf("  %d\t%.2f\t%.0f\t", r.Messages, r.Bandwidth, r.MessageRate)
	}
	if l := r.Latency; l != nil {
		head += "min µs\tp50\tp90\tp99\tp99.9\tmax\t"
		row += fmt.Sprintf("%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t", l.Min, l.P50, l.P90, l.P99, l.P999, l.Max)
	}
	if head != "" {
		fmt.Fprintf(t, "%s\n%s\n", head, row)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Received != nil {
		fmt.Fprintf(w, "  received %d of %d messages\n", *r.Received, r.Sent)
	}
	var err error
	switch {
	case r.Interrupted && r.Seconds > 0:
		_, err = fmt.Fprintf(w, "  interrupted after %.2f s of the bandwidth\n", r.Seconds)
	case r.Interrupted:
		_, err = fmt.Fprintln(w, "  interrupted before the bandwidth was measured")
	}
	return err
}

func (s Address) String() string { return s.Device + " (" + s.GID + ")" }

func count(n int, of string) string {
	if n != 1 {
		of += "s"
	}
	return fmt.Sprintf("%d %s", n, of)
}
