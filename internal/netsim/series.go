package netsim

import (
	"bufio"
	"fmt"
	"io"

	"softroce/internal/network"
)

// Series say what NICs and ports did over time, in intervals from the beginning of the run, the
// warm-up included. A list is empty if all its values are 0.
type Series struct {
	Interval int64        `json:"interval_ns"` // the last one may be shorter
	Times    []int64      `json:"time_ns"`     // ends of the intervals
	NICs     []NICSeries  `json:"nics"`
	Ports    []PortSeries `json:"ports"`
}

// A NICSeries has what a NIC did in each interval.
type NICSeries struct {
	NIC  string  `json:"nic"`
	Rate []int64 `json:"rate_bps,omitempty"` // of the frames that it sent
	CNPs []int64 `json:"cnps,omitempty"`     // that reduced its rates
}

// A PortSeries has what a port did in each interval.
type PortSeries struct {
	Port    string  `json:"port"`
	Queue   []int64 `json:"queue_bytes,omitempty"` // the longest
	Paused  []int64 `json:"paused_ns,omitempty"`
	Marked  []int64 `json:"marked,omitempty"`
	Dropped []int64 `json:"dropped,omitempty"`
	Lost    []int64 `json:"lost,omitempty"`
}

// A sampler collects series. When it has as many samples as it may, it joins each two of them, and
// doubles the interval.
type sampler struct {
	network  *network.Network
	hosts    []host
	interval int64
	next     int64 // when the next interval ends
	most     int   // samples, an even number
	ends     []int64
	nics     []nicColumns
	ports    []portColumns
}

// The columns of a NIC and of a port.
type (
	nicColumns struct {
		bytes, cnps column
		handled     int64 // CNPs so far
	}
	portColumns struct{ queue, paused, marked, dropped, lost column }
)

// A column has a value for each interval. It is empty until one is not 0.
type column []int64

// put appends the value of interval i.
func (c *column) put(i int, v int64) {
	if v == 0 && *c == nil {
		return
	}
	if *c == nil {
		*c = make(column, i, i+1)
	}
	*c = append(*c, v)
}

// halve joins each two values.
func (c *column) halve(join func(a, b int64) int64) {
	for i := 0; i+1 < len(*c); i += 2 {
		(*c)[i/2] = join((*c)[i], (*c)[i+1])
	}
	*c = (*c)[:len(*c)/2]
}

func sum(a, b int64) int64 { return a + b }

// Bounds of series.
const (
	defaultInterval = 10_000  // ns
	maxSamples      = 1000    // of a column
	minSamples      = 100     // of a column, in large networks
	maxValues       = 1 << 22 // of all columns
)

func newSampler(n *network.Network, hosts []host, interval int64) *sampler {
	s := &sampler{network: n, hosts: hosts, interval: interval, next: 1 + interval, // time begins at 1
		nics: make([]nicColumns, len(hosts)), ports: make([]portColumns, len(n.Ports()))}
	columns := 2*len(s.nics) + 5*len(s.ports)
	s.most = min(maxSamples, max(minSamples, maxValues/columns)) &^ 1
	return s
}

// until takes the samples of the intervals that end before a time.
func (s *sampler) until(t int64) {
	for s.next < t {
		s.network.Advance(s.next)
		s.take(s.next)
		if len(s.ends) == s.most {
			s.double()
		}
		s.next = 1 + int64(len(s.ends)+1)*s.interval
	}
}

// take ends an interval.
func (s *sampler) take(now int64) {
	i := len(s.ends)
	s.ends = append(s.ends, now-1)
	for k, p := range s.network.Ports() {
		x, c := s.network.Sample(p), &s.ports[k]
		c.queue.put(i, int64(x.Queue))
		c.paused.put(i, x.Paused)
		c.marked.put(i, int64(x.Marked))
		c.dropped.put(i, int64(x.Dropped))
		c.lost.put(i, int64(x.Lost))
		if nic := p.NIC(); nic >= 0 {
			s.nics[nic].bytes.put(i, int64(x.Bytes))
		}
	}
	for k := range s.hosts {
		c, n := &s.nics[k], int64(s.hosts[k].client.Device.CNPsHandled())
		c.cnps.put(i, n-c.handled)
		c.handled = n
	}
}

// double joins each two intervals.
func (s *sampler) double() {
	s.interval *= 2
	for i := 1; i < len(s.ends); i += 2 {
		s.ends[i/2] = s.ends[i]
	}
	s.ends = s.ends[:len(s.ends)/2]
	for i := range s.nics {
		c := &s.nics[i]
		c.bytes.halve(sum)
		c.cnps.halve(sum)
	}
	for i := range s.ports {
		c := &s.ports[i]
		c.queue.halve(func(a, b int64) int64 { return max(a, b) })
		c.paused.halve(sum)
		c.marked.halve(sum)
		c.dropped.halve(sum)
		c.lost.halve(sum)
	}
}

// series returns what was sampled of a run that ends now.
func (s *sampler) series(now int64) *Series {
	if s.until(now); now > s.next-s.interval {
		s.take(now)
	}
	r := &Series{Interval: s.interval, Times: s.ends}
	for i := range s.nics {
		c := NICSeries{NIC: s.network.NICName(i), CNPs: s.nics[i].cnps}
		begin := int64(0)
		for k, bytes := range s.nics[i].bytes {
			c.Rate = append(c.Rate, int64(float64(bytes)*8e9/float64(s.ends[k]-begin)))
			begin = s.ends[k]
		}
		r.NICs = append(r.NICs, c)
	}
	for i, p := range s.network.Ports() {
		c := &s.ports[i]
		r.Ports = append(r.Ports, PortSeries{p.Name, c.queue, c.paused, c.marked, c.dropped, c.lost})
	}
	return r
}

// WriteCSV writes the series as lines of an interval's end, a NIC or port, what was measured, and
// its value.
func (s *Series) WriteCSV(to io.Writer) error {
	w := bufio.NewWriter(to)
	fmt.Fprintln(w, "time_ns,of,measure,value")
	write := func(of, measure string, values []int64) {
		for i, v := range values {
			fmt.Fprintf(w, "%d,%s,%s,%d\n", s.Times[i], of, measure, v)
		}
	}
	for _, c := range s.NICs {
		write(c.NIC, "rate_bps", c.Rate)
		write(c.NIC, "cnps", c.CNPs)
	}
	for _, c := range s.Ports {
		write(c.Port, "queue_bytes", c.Queue)
		write(c.Port, "paused_ns", c.Paused)
		write(c.Port, "marked", c.Marked)
		write(c.Port, "dropped", c.Dropped)
		write(c.Port, "lost", c.Lost)
	}
	return w.Flush()
}
