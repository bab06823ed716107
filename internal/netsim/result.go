package netsim

import (
	"math"
	"slices"

	"softroce/internal/ib"
	"softroce/internal/network"
	"softroce/packet"
)

// A Result is the outcome of a run. With the same topology, workload and seed it is the same.
type Result struct {
	Seed      uint64            `json:"seed"`
	Time      int64             `json:"time_ns"`     // when the run ended
	Measured  int64             `json:"measured_ns"` // how long: rates, queues and counters are those since the warm-up
	QPs       int               `json:"qps"`
	Goodput   float64           `json:"goodput_bps"` // payload of all flows
	Jain      float64           `json:"jain"`        // fairness index of the rates of the flows
	Starved   int               `json:"starved"`     // flows that got less than a tenth of the mean rate
	Ended     int               `json:"ended"`
	Failed    int               `json:"failed"`
	Deadlock  *network.Deadlock `json:"deadlock,omitempty"` // of PFC, that has ended the run
	Sizes     []SizeClass       `json:"sizes"`
	Receivers []Receiver        `json:"receivers"`
	NICs      NICTotals         `json:"nics"`
	Ports     []PortResult      `json:"ports"`
	Failures  []FailureResult   `json:"failures,omitempty"`
	Series    *Series           `json:"series"`
	Flows     []FlowResult      `json:"flows"`
	Hops      uint64            `json:"packet_hops"`
}

// A FlowResult is the outcome of a flow.
type FlowResult struct {
	Flow
	End      int64   `json:"end_ns,omitempty"` // 0: it has not ended
	Acked    int64   `json:"acked_bytes"`
	Rate     float64 `json:"rate_bps"` // of payload, while it lasted after the warm-up
	FCT      int64   `json:"fct_ns,omitempty"`
	Slowdown float64 `json:"slowdown,omitempty"` // FCT, compared with that in an empty network
	Failed   string  `json:"failed,omitempty"`
}

// A SizeClass has the flows up to a size that have ended.
type SizeClass struct {
	Limit    int64       `json:"up_to_bytes"` // 0: all others
	Flows    int         `json:"flows"`
	FCT      Percentiles `json:"fct_ns"`
	Slowdown Percentiles `json:"slowdown"`
}

// Percentiles of a value.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A Receiver is a NIC to which flows go.
type Receiver struct {
	NIC     string  `json:"nic"`
	Flows   int     `json:"flows"`
	Goodput float64 `json:"goodput_bps"`
	Share   float64 `json:"share"` // of the rate of its port, payload alone
	Jain    float64 `json:"jain"`
}

// NICTotals are counters of all NICs.
type NICTotals struct {
	CNPs          uint64 `json:"cnps"`
	Marked        uint64 `json:"marked"`
	Retransmitted uint64 `json:"retransmitted"`
	SequenceNAKs  uint64 `json:"sequence_naks"`
	Timeouts      uint64 `json:"timeouts"`
}

// A PortResult is what a port has done.
type PortResult struct {
	Port           string  `json:"port"`
	Frames         uint64  `json:"frames"`
	Bytes          uint64  `json:"bytes"`
	Utilization    float64 `json:"utilization"`
	Dropped        uint64  `json:"dropped"`
	Lost           uint64  `json:"lost"` // on the cable, by failures
	Marked         uint64  `json:"marked"`
	MeanQueue      float64 `json:"mean_queue_bytes"`
	MaxQueue       int     `json:"max_queue_bytes"`
	PausesSent     uint64  `json:"pauses_sent"`
	PausesReceived uint64  `json:"pauses_received"`
	Paused         int64   `json:"paused_ns"`
}

// counters are those of the NICs.
type counters NICTotals

func (sim *simulation) count() (c counters) {
	for i := range sim.hosts {
		n := sim.hosts[i].client.Device.Counters()
		c.CNPs += n.CNPHandled
		c.Marked += n.RxECNMarked
		c.Retransmitted += n.Retransmitted
		c.SequenceNAKs += n.PacketSeqErr
		c.Timeouts += n.LocalACKTimeout
	}
	return c
}

func (sim *simulation) result() *Result {
	r := &Result{Seed: sim.seed, Time: sim.now - 1, Measured: max(0, sim.now-sim.measured), QPs: sim.qps, Hops: sim.network.Hops()}
	c := sim.count()
	r.NICs = NICTotals{c.CNPs - sim.base.CNPs, c.Marked - sim.base.Marked, c.Retransmitted - sim.base.Retransmitted,
		c.SequenceNAKs - sim.base.SequenceNAKs, c.Timeouts - sim.base.Timeouts}
	var rates []float64
	to := map[int][]float64{}
	for _, f := range sim.flows {
		x, measured := sim.flowResult(f)
		r.Flows = append(r.Flows, x)
		switch {
		case x.Failed != "":
			r.Failed++
		case f.ended != 0:
			r.Ended++
		}
		if measured {
			rates = append(rates, x.Rate)
			to[f.to] = append(to[f.to], x.Rate)
		}
		if r.Measured > 0 {
			r.Goodput += float64(f.counted) * 8e9 / float64(r.Measured)
		}
	}
	r.Jain = jain(rates)
	r.Starved = starved(rates)
	r.Sizes = sizeClasses(r.Flows)
	r.setReceivers(sim, to)
	for _, p := range sim.network.Ports() {
		r.Ports = append(r.Ports, portResult(p, sim.network.Stats(p), r.Measured))
	}
	r.Deadlock = sim.deadlock
	r.Failures = sim.failureResults()
	r.Series = sim.sampler.series(sim.now)
	return r
}

// flowResult returns the outcome of a flow, and whether it has a rate: it lasted after the warm-up.
func (sim *simulation) flowResult(f *flow) (x FlowResult, measured bool) {
	x = FlowResult{Flow: f.Flow, Acked: f.acked}
	until := sim.now
	if f.ended != 0 {
		until = f.ended
		x.End = f.ended - 1
	}
	if f.failed != ib.WCSuccess {
		x.Failed = f.failed.String()
	} else if f.ended != 0 {
		x.FCT = f.ended - f.began
		x.Slowdown = float64(x.FCT) / float64(sim.ideal(f))
	}
	if from := max(f.began, sim.measured); f.started && until > from {
		x.Rate = float64(f.counted) * 8e9 / float64(until-from)
		return x, true
	}
	return x, false
}

// ideal returns how long a flow lasts in an empty network, in ns: its packets one after the other
// at the lowest rate of the path, the time that the first needs to pass the other ports, and the
// acknowledgement of the last.
func (sim *simulation) ideal(f *flow) int64 {
	mtu := int64(sim.topology.NIC.MTU)
	wire := func(payload int64, header int) float64 {
		return float64(int(payload)+frameSize(header)+frameGap) * 8e9
	}
	const (
		header = packet.BTHLen + 4 // a packet in the middle of a message, about
		ack    = packet.BTHLen + 4 // an AETH
	)
	packets := (f.Size + mtu - 1) / mtu
	total := float64(f.Size)*8e9 + float64(packets)*wire(0, header)
	first, reply := wire(min(mtu, f.Size), header), wire(0, ack)
	t, slowest := 0.0, int64(math.MaxInt64)
	for _, p := range sim.network.Path(f.from, f.to, 0) {
		t += first/float64(p.Rate) + reply/float64(p.Rate) + 2*float64(p.Delay())
		slowest = min(slowest, p.Rate)
	}
	return int64(t + (total-first)/float64(slowest))
}

// frameGap is the size of the preamble and the gap of Ethernet in bytes.
const frameGap = 8 + 12

// jain returns Jain's fairness index: 1 if all values are equal, 1/n if all but one are 0.
func jain(l []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range l {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(l)) * squares)
}

// starved returns how many values are below a tenth of the mean.
func starved(l []float64) (n int) {
	sum := 0.0
	for _, v := range l {
		sum += v
	}
	for _, v := range l {
		if v < sum/float64(len(l))/10 {
			n++
		}
	}
	return n
}

func (r *Result) setReceivers(sim *simulation, rates map[int][]float64) {
	counted := map[int]int64{}
	for _, f := range sim.flows {
		counted[f.to] += f.counted
	}
	for i := range sim.hosts {
		if rates[i] == nil {
			continue
		}
		x := Receiver{NIC: sim.network.NICName(i), Flows: len(rates[i]), Jain: jain(rates[i])}
		if r.Measured > 0 {
			x.Goodput = float64(counted[i]) * 8e9 / float64(r.Measured)
			x.Share = x.Goodput / float64(sim.network.NICPort(i).Rate)
		}
		r.Receivers = append(r.Receivers, x)
	}
}

// sizes are the upper ends of the size classes in bytes.
var sizes = []int64{10e3, 100e3, 1e6, 10e6, 0}

func sizeClasses(flows []FlowResult) (l []SizeClass) {
	classes := make([][]*FlowResult, len(sizes))
	for i := range flows {
		if f := &flows[i]; f.FCT > 0 {
			k := slices.IndexFunc(sizes, func(upTo int64) bool { return upTo == 0 || f.Size <= upTo })
			classes[k] = append(classes[k], f)
		}
	}
	for k, flows := range classes {
		if len(flows) > 0 {
			l = append(l, newSizeClass(sizes[k], flows))
		}
	}
	return l
}

func newSizeClass(limit int64, flows []*FlowResult) SizeClass {
	var fct, slowdown []float64
	for _, f := range flows {
		fct, slowdown = append(fct, float64(f.FCT)), append(slowdown, f.Slowdown)
	}
	return SizeClass{Limit: limit, Flows: len(flows), FCT: percentiles(fct), Slowdown: percentiles(slowdown)}
}

func percentiles(l []float64) Percentiles {
	slices.Sort(l)
	at := func(share float64) float64 { return l[max(0, int(math.Ceil(share*float64(len(l))))-1)] }
	return Percentiles{at(.5), at(.95), at(.99), l[len(l)-1]}
}

func portResult(p *network.Port, s network.PortStats, measured int64) PortResult {
	r := PortResult{Port: p.Name, Frames: s.Frames, Bytes: s.Bytes, Dropped: s.Dropped, Lost: s.Lost, Marked: s.Marked, MeanQueue: s.MeanQueue,
		MaxQueue: s.MaxQueue, PausesSent: s.PausesSent, PausesReceived: s.PausesReceived, Paused: s.Paused}
	if measured > 0 {
		r.Utilization = float64(s.Bytes+frameGap*s.Frames) * 8e9 / float64(measured) / float64(p.Rate)
	}
	return r
}
