package congestion

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"softroce/internal/suggest"
)

// An Algorithm says how queue pairs react to congestion.
type Algorithm uint8

// Algorithms.
const (
	DCQCN Algorithm = iota // the zero value, and so the default
	None                   // no CNPs are sent, and those that arrive are ignored
	Swift                  // as None, but round trips limit queue pairs
)

var algorithms = [...]string{DCQCN: "dcqcn", None: "none", Swift: "swift"}

// UsesCNPs reports whether marks and CNPs show congestion. A queue pair needs a controller when its
// first CNP arrives.
func (a Algorithm) UsesCNPs() bool { return a == DCQCN }

// UsesRoundTrips reports whether the round trips of a queue pair show congestion. Then it needs a
// controller before it sends.
func (a Algorithm) UsesRoundTrips() bool { return a == Swift }

func (a Algorithm) String() string {
	if int(a) < len(algorithms) {
		return algorithms[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// Algorithms returns the names of all algorithms.
func Algorithms() []string { return algorithms[:] }

// Params are the parameters of a NIC's congestion control. Controllers refer to them, so that a
// change takes effect at once.
type Params struct {
	Algorithm Algorithm

	// Notification point.
	CNPDSCP            uint32 // DSCP of CNPs
	CNPPriorityMode    uint32 // 1: CNPs have the priority of their connection instead of CNPPriority
	CNPPriority        uint32 // priority of CNPs in a VLAN tag
	MinTimeBetweenCNPs uint32 // µs, for each queue pair

	// Reaction point.
	ClampTarget          uint32 // 1: each CNP sets the target rate to the current one
	ClampTargetAfterTime uint32 // 1: without ClampTarget, the timer counts as an increase, and not only the byte counter
	TimeReset            uint32 // µs between two increases by time
	ByteReset            uint32 // units of 64 bytes between two increases by bytes
	Threshold            uint32 // increases of each kind that are fast recovery
	AdditiveIncrease     uint32 // Mb/s
	HyperIncrease        uint32 // Mb/s
	MaxRate              uint32 // Mb/s; 0: the rate of the port
	MinRate              uint32 // Mb/s
	MinDecrease          uint32 // a CNP leaves at least this percentage of the rate
	FirstRate            uint32 // Mb/s to which the first CNP sets the rate; 0: it reduces the rate like any other
	AlphaWeight          uint32 // in 1024ths: weight of the old alpha in the new one
	AlphaPeriod          uint32 // µs without a CNP after which alpha decreases
	MonitorPeriod        uint32 // µs; CNPs within it reduce the rate once
	InitialAlpha         uint32 // in 1024ths
	DecreaseLog          uint32 // a CNP reduces the rate by alpha/2^DecreaseLog, with alpha in 1024ths

	// All limits of rates.
	BurstTime uint32 // µs at its rate that a queue pair sends at once; 0: packets one by one

	// Swift, which has MaxRate and MinRate, too.
	TargetDelay   uint32 // µs that a round trip should take at most
	FlowDelay     uint32 // µs that are added for each 1 by which the square root of highest/current rate exceeds 1
	DelayIncrease uint32 // Mb/s by which a faster one increases the rate; 0: a 256th of the highest
	DelayWeight   uint32 // in 1024ths, of the share of a round trip beyond the target by which it reduces the rate
	MaxDecrease   uint32 // a slow round trip reduces the rate by at most this percentage, and a loss by it
}

// Defaults returns the parameters with which the publication deploys DCQCN, and for what it does
// not have, mlx5's. Those of mlx5 firmware suppose CNPs every few microseconds; a NIC in software
// sends and replies in bursts of tens of microseconds.
func Defaults() Params {
	return Params{
		CNPDSCP: 48, CNPPriority: 6, MinTimeBetweenCNPs: 50,
		ClampTarget: 1, ClampTargetAfterTime: 1, TimeReset: 55, ByteReset: 10e6 / byteUnit, Threshold: 5,
		AdditiveIncrease: 40, HyperIncrease: 400, MinRate: 10, MinDecrease: 50,
		AlphaWeight: 1020, AlphaPeriod: 55, MonitorPeriod: 4, InitialAlpha: 1023, DecreaseLog: 11, BurstTime: 20,
		TargetDelay: 100, FlowDelay: 20, DelayWeight: 819, MaxDecrease: 50,
	}
}

// highest returns the highest rate at a port, both in b/s.
func (p *Params) highest(line float64) float64 {
	if p.MaxRate != 0 {
		return math.Min(line, mbps(p.MaxRate))
	}
	return line
}

// Burst returns the burst of a Pacer, in nanoseconds.
func (p *Params) Burst() int64 { return microseconds(p.BurstTime) }

func mbps(n uint32) float64 { return float64(n) * 1e6 }

// byteUnit is the unit of ByteReset in bytes.
const byteUnit = 64

// A field is a parameter: its name, which for DCQCN is that in the cc_params of mlx5's debugfs, and
// its range.
type field struct {
	name     string
	min, max uint32
	of       func(*Params) *uint32
}

var fields = []field{
	{"np_cnp_dscp", 0, 63, func(p *Params) *uint32 { return &p.CNPDSCP }},
	{"np_cnp_prio_mode", 0, 1, func(p *Params) *uint32 { return &p.CNPPriorityMode }},
	{"np_cnp_prio", 0, 7, func(p *Params) *uint32 { return &p.CNPPriority }},
	{"np_min_time_between_cnps", 0, 4095, func(p *Params) *uint32 { return &p.MinTimeBetweenCNPs }},
	{"rp_clamp_tgt_rate", 0, 1, func(p *Params) *uint32 { return &p.ClampTarget }},
	{"rp_clamp_tgt_rate_ati", 0, 1, func(p *Params) *uint32 { return &p.ClampTargetAfterTime }},
	{"rp_time_reset", 1, 131071, func(p *Params) *uint32 { return &p.TimeReset }},
	{"rp_byte_reset", 1, 1 << 25, func(p *Params) *uint32 { return &p.ByteReset }},
	{"rp_threshold", 1, 31, func(p *Params) *uint32 { return &p.Threshold }},
	{"rp_ai_rate", 1, maxMbps, func(p *Params) *uint32 { return &p.AdditiveIncrease }},
	{"rp_hai_rate", 1, maxMbps, func(p *Params) *uint32 { return &p.HyperIncrease }},
	{"rp_max_rate", 0, maxMbps, func(p *Params) *uint32 { return &p.MaxRate }},
	{"rp_min_rate", 1, maxMbps, func(p *Params) *uint32 { return &p.MinRate }},
	{"rp_min_dec_fac", 1, 100, func(p *Params) *uint32 { return &p.MinDecrease }},
	{"rp_rate_to_set_on_first_cnp", 0, maxMbps, func(p *Params) *uint32 { return &p.FirstRate }},
	{"rp_dce_tcp_g", 1, 1023, func(p *Params) *uint32 { return &p.AlphaWeight }},
	{"rp_dce_tcp_rtt", 1, 131071, func(p *Params) *uint32 { return &p.AlphaPeriod }},
	{"rp_rate_reduce_monitor_period", 0, 131071, func(p *Params) *uint32 { return &p.MonitorPeriod }},
	{"rp_initial_alpha_value", 1, 1023, func(p *Params) *uint32 { return &p.InitialAlpha }},
	{"rp_gd", 10, 15, func(p *Params) *uint32 { return &p.DecreaseLog }},
	{"burst_time", 0, 1000, func(p *Params) *uint32 { return &p.BurstTime }},
	{"swift_target_delay", 1, 1_000_000, func(p *Params) *uint32 { return &p.TargetDelay }},
	{"swift_flow_delay", 0, 1_000_000, func(p *Params) *uint32 { return &p.FlowDelay }},
	{"swift_ai_rate", 0, maxMbps, func(p *Params) *uint32 { return &p.DelayIncrease }},
	{"swift_beta", 1, 1024, func(p *Params) *uint32 { return &p.DelayWeight }},
	{"swift_max_mdf", 1, 99, func(p *Params) *uint32 { return &p.MaxDecrease }},
}

// maxMbps is the highest rate that can be set, 1 Tb/s.
const maxMbps = 1_000_000

// A Value is a parameter and its value.
type Value struct {
	Name  string `json:"name"`
	Value uint32 `json:"value"`
}

// Values returns the parameters in their order. The algorithm is not among them.
func (p *Params) Values() []Value {
	l := make([]Value, len(fields))
	for i, f := range fields {
		l[i] = Value{f.name, *f.of(p)}
	}
	return l
}

// Names returns the names of the parameters in their order.
func Names() []string {
	l := make([]string, len(fields))
	for i, f := range fields {
		l[i] = f.name
	}
	return l
}

// Set sets a parameter by its name. The error names the range.
func (p *Params) Set(name string, value uint32) error {
	for _, f := range fields {
		if f.name != name {
			continue
		}
		if value < f.min || value > f.max {
			return fmt.Errorf("%s %d: must be %d to %d", name, value, f.min, f.max)
		}
		*f.of(p) = value
		return nil
	}
	return fmt.Errorf("%q is not a parameter of congestion control%s", name, suggest.Word(name, Names()))
}

// SetText is Set with the text of the value. It also sets "algorithm", to the name of one.
func (p *Params) SetText(name, value string) (err error) {
	if name == "algorithm" {
		var a Algorithm
		if a, err = ParseAlgorithm(value); err == nil {
			p.Algorithm = a
		}
		return err
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return fmt.Errorf("%s %q: want a number", name, value)
	}
	return p.Set(name, uint32(n))
}

// ParseAlgorithm returns the algorithm of a name.
func ParseAlgorithm(name string) (Algorithm, error) {
	for i, n := range algorithms {
		if n == name {
			return Algorithm(i), nil
		}
	}
	return 0, fmt.Errorf("congestion control %q%s", name, suggest.Word(name, slices.Clone(algorithms[:])))
}
