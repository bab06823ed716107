package perf

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Progress is how far a measurement is. String may be called while it runs.
type Progress struct{ now atomic.Pointer[phase] }

// A phase is one of the two phases of a measurement.
type phase struct {
	o          *Options
	bandwidth  bool
	start      time.Time
	operations atomic.Uint64 // completed in this phase
}

// begin notes the start of a phase. p may be nil.
func (p *Progress) begin(o *Options, bandwidth bool) *phase {
	f := &phase{o: o, bandwidth: bandwidth, start: time.Now()}
	if p != nil {
		p.now.Store(f)
	}
	return f
}

// String says which phase runs, for how long, and what it has measured.
func (p *Progress) String() string {
	f := p.now.Load()
	if f == nil {
		return "connecting"
	}
	n, took := float64(f.operations.Load()), time.Since(f.start)
	name, whole := "latency", f.o.Latency
	if f.bandwidth {
		name, whole = "bandwidth", f.o.Duration
	}
	if took > whole {
		return name + ": waiting for the last operations"
	}
	s := fmt.Sprintf("%s: %.1f of %v, ", name, took.Seconds(), whole)
	if f.bandwidth {
		return s + fmt.Sprintf("%.2f Gb/s", n*float64(f.o.Size)*8/1e9/took.Seconds())
	}
	return s + fmt.Sprintf("%.0f operations", n)
}
