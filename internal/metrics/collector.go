package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"softroce/internal/ib"
	"softroce/nic"
)

// A Source returns the current state of the NICs and engines.
type Source interface {
	Devices() []nic.Snapshot
	Engines() []nic.EngineCounters
}

// Handler serves the metrics of source and of the process over HTTP.
func Handler(source Source, version string) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(NewCollector(source, version), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// NewCollector returns a collector of source's metrics.
func NewCollector(source Source, version string) prometheus.Collector {
	c := &collector{source: source, version: version}
	for _, k := range Counters {
		c.counters = append(c.counters, prometheus.NewDesc(k.Prom, k.Help, port, nil))
	}
	return c
}

// port is the labels of all metrics of a NIC. The port is 1, except for the state of a second port.
var port = []string{"device", "port"}

// portWith returns port and further labels.
func portWith(more ...string) []string { return append(append([]string(nil), port...), more...) }

var (
	buildInfo = prometheus.NewDesc("softroce_build_info", "Version of the daemon.", []string{"version"}, nil)
	info      = prometheus.NewDesc("node_infiniband_info", "A NIC.", []string{"device", "board_id", "firmware_version", "hca_type"}, nil)
	stateID   = prometheus.NewDesc("node_infiniband_state_id", "State of the port: 1 down, 4 active.", port, nil)
	physID    = prometheus.NewDesc("node_infiniband_physical_state_id", "Physical state of the port: 3 disabled, 5 link up.", port, nil)
	rate      = prometheus.NewDesc("node_infiniband_rate_bytes_per_second", "Rate that the port reports.", port, nil)
	opcodes   = prometheus.NewDesc("softroce_opcode_packets_total", "Packets by opcode.", portWith("direction", "opcode"), nil)
	drops     = prometheus.NewDesc("softroce_drops_total", "Dropped packets by reason.", portWith("reason"), nil)
	naks      = prometheus.NewDesc("softroce_naks_total", "NAKs by code; RNR NAKs have their own counters.", portWith("direction", "code"), nil)
	qps       = prometheus.NewDesc("softroce_qps", "Queue pairs by state.", portWith("state"), nil)
	objects   = prometheus.NewDesc("softroce_objects", "Objects that clients hold.", portWith("kind"), nil)
	matched   = prometheus.NewDesc("softroce_fault_matched_total", "Packets, verbs or work requests that met the conditions of a fault rule.", portWith("id", "line", "rule"), nil)
	acted     = prometheus.NewDesc("softroce_fault_acted_total", "Packets, verbs or work requests that a fault rule acted on.", portWith("id", "line", "rule"), nil)
	memory    = prometheus.NewDesc("softroce_registered_bytes", "Bytes of registered memory.", port, nil)
	regions   = prometheus.NewDesc("softroce_memory_regions", "Memory regions by how their memory is accessed, and why it is not mapped.", portWith("backing", "unshared"), nil)
	rings     = prometheus.NewDesc("softroce_ring_bytes", "Bytes of rings shared with clients.", port, nil)
	engine    = prometheus.NewDesc("softroce_engine_seconds_total", "Time that an engine spent in each state.", []string{"engine", "state"}, nil)
	busy      = prometheus.NewDesc("softroce_engine_busy_ratio", "Share of an engine's time spent on work since it started.", []string{"engine"}, nil)
	steps     = prometheus.NewDesc("softroce_engine_steps_total", "Steps of an engine.", []string{"engine"}, nil)
)

var descs = []*prometheus.Desc{
	buildInfo, info, stateID, physID, rate, opcodes, drops, naks, qps, objects, matched, acted, memory, regions, rings, engine, busy, steps,
}

type collector struct {
	source   Source
	version  string
	counters []*prometheus.Desc // parallel to Counters
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(descs, c.counters) {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, c.version)
	for _, d := range c.source.Devices() {
		m := sample{ch, d.Name, "1"}
		ch <- prometheus.MustNewConstMetric(info, prometheus.GaugeValue, 1, d.Name,
			cmp.Or(d.Identity.BoardID, "softroce"), cmp.Or(d.Identity.FWVer, c.version), cmp.Or(d.Identity.HCAType, "softroce"))
		c.collectCounters(m, &d.Counters)
		for _, f := range d.Faults {
			id, line := strconv.Itoa(f.ID), strconv.Itoa(f.Line)
			m.count(matched, f.Matched, id, line, f.Rule)
			m.count(acted, f.Acted, id, line, f.Rule)
		}
		collectState(m, &d)
	}
	for i, e := range c.source.Engines() {
		collectEngine(ch, strconv.Itoa(i), e)
	}
}

// sample sends the metrics of one device.
type sample struct {
	ch     chan<- prometheus.Metric
	device string
	port   string
}

func (m sample) count(d *prometheus.Desc, v uint64, labels ...string) {
	m.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{m.device, m.port}, labels...)...)
}

func (m sample) gauge(d *prometheus.Desc, v float64, labels ...string) {
	m.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{m.device, m.port}, labels...)...)
}

func (c *collector) collectCounters(m sample, n *nic.Counters) {
	for i, k := range Counters {
		m.count(c.counters[i], k.Value(n))
	}
	for _, o := range Opcodes(&n.RxOpcode) {
		m.count(opcodes, o.Value, "received", o.Label)
	}
	for _, o := range Opcodes(&n.TxOpcode) {
		m.count(opcodes, o.Value, "sent", o.Label)
	}
	for _, d := range n.Dropped() {
		m.count(drops, d.Count, d.Reason)
	}
	for _, k := range NAKs(&n.NAKReceived) {
		m.count(naks, k.Value, "received", k.Label)
	}
	for _, k := range NAKs(&n.NAKSent) {
		m.count(naks, k.Value, "sent", k.Label)
	}
}

// qpStates are reported even if no QP is in them.
var qpStates = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func collectState(m sample, d *nic.Snapshot) {
	collectPort(m, d, d.PortState)
	if d.Port2 != 0 {
		collectPort(sample{m.ch, m.device, "2"}, d, d.Port2)
	}
	in := map[string]int{}
	for _, q := range d.QPs {
		in[q.State]++
	}
	for _, s := range qpStates {
		m.gauge(qps, float64(in[s]), s)
		delete(in, s)
	}
	for s, n := range in {
		m.gauge(qps, float64(n), s)
	}
	var pds int
	var registered, ring uint64
	for _, c := range d.Contexts {
		pds += c.PDs
		registered += c.RegisteredBytes
		ring += c.RingBytes
	}
	m.gauge(objects, float64(len(d.Contexts)), "context")
	m.gauge(objects, float64(pds), "pd")
	m.gauge(objects, float64(len(d.MRs)), "mr")
	m.gauge(objects, float64(len(d.CQs)), "cq")
	m.gauge(objects, float64(len(d.QPs)), "qp")
	m.gauge(objects, float64(len(d.SRQs)), "srq")
	m.gauge(objects, float64(len(d.MWs)), "mw")
	m.gauge(objects, float64(len(d.DMs)), "dm")
	m.gauge(objects, float64(len(d.AHs)), "ah")
	m.gauge(objects, float64(len(d.Groups)), "mcast_group")
	backed := map[[2]string]int{}
	for _, r := range d.MRs {
		backed[[2]string{r.Backing, r.Unshared}]++
	}
	for how, n := range backed {
		m.gauge(regions, float64(n), how[0], how[1])
	}
	m.gauge(memory, float64(registered))
	m.gauge(rings, float64(ring))
}

func collectPort(m sample, d *nic.Snapshot, s ib.PortState) {
	m.gauge(stateID, float64(s))
	phys := ib.PhysLinkUp
	if s != ib.PortActive {
		phys = ib.PhysDisabled
	}
	m.gauge(physID, float64(phys))
	m.gauge(rate, float64(ib.BitRate(d.Identity.ActiveSpeed, d.Identity.ActiveWidth))/8)
}

func collectEngine(ch chan<- prometheus.Metric, name string, e nic.EngineCounters) {
	for _, s := range []struct {
		state string
		ns    int64
	}{{"busy", e.Busy}, {"idle", e.Idle}, {"asleep", e.Asleep}} {
		ch <- prometheus.MustNewConstMetric(engine, prometheus.CounterValue, float64(s.ns)/1e9, name, s.state)
	}
	ch <- prometheus.MustNewConstMetric(busy, prometheus.GaugeValue, e.BusyShare(), name)
	ch <- prometheus.MustNewConstMetric(steps, prometheus.CounterValue, float64(e.Steps), name)
}
