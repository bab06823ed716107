package main

import "fmt"

// A row of the table compares two measurements.
type row struct {
	name        string
	of, beside  *measurement
	what        quantity
	lower       bool    // less is better
	floor, goal float64 // of the ratio
}

// A quantity is what a row takes of a sample.
type quantity string

const (
	value quantity = ""
	mean  quantity = "mean" // of latencies
	cpu   quantity = "cpu"
)

func (s sample) of(q quantity) float64 {
	switch q {
	case mean:
		return s.mean
	case cpu:
		return s.cpu
	}
	return s.value
}

// The places of measurements.
var (
	twoDaemons = place{mtu: 9000}
	smallMTU   = place{mtu: 1500}
	oneDaemon  = place{}
)

func (p place) String() string {
	switch {
	case p.mtu == 1500:
		return "two daemons, MTU 1500"
	case p.mtu != 0:
		return "two daemons"
	case p.memory == "auto":
		return "one daemon, shared memory"
	case p.memory == "process":
		return "one daemon, process memory"
	}
	return "one daemon"
}

// network names what TCP uses at a place.
func (p place) network() string {
	if p.mtu == 0 {
		return "loopback"
	}
	return fmt.Sprint("MTU ", p.mtu)
}

func bytesOf(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprint(n>>20, " MiB")
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprint(n>>10, " KiB")
	}
	return fmt.Sprint(n, " B")
}

var rows = makeRows()

func makeRows() (list []row) {
	iperf3 := tcp(9000)
	for _, size := range []int{64 << 10, 1 << 20} {
		write := perftest("ib_write_bw", size, gbps, twoDaemons)
		list = append(list,
			row{name: write.name, of: write, beside: iperf3, floor: 0.75, goal: 1},
			row{name: write.name + ", CPU s/GiB", of: write, beside: iperf3, what: cpu, lower: true, floor: 1.8, goal: 1.2})
	}
	return list
}
