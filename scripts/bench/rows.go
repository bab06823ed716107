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
	case p.engines != 0:
		return fmt.Sprint("two daemons, engines=", p.engines)
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
		send, read := perftest("ib_send_bw", size, gbps, twoDaemons), perftest("ib_read_bw", size, gbps, twoDaemons)
		tagged := ucx("tag_bw", size, gbps, false, twoDaemons)
		list = append(list,
			row{name: write.name, of: write, beside: iperf3, floor: 0.75, goal: 1},
			row{name: write.name + ", CPU", of: write, beside: iperf3, what: cpu, lower: true, floor: 1.8, goal: 1.2},
			row{name: send.name, of: send, beside: write, floor: 0.8, goal: 0.95},
			row{name: read.name, of: read, beside: write, floor: 0.8, goal: 0.95},
			row{name: tagged.name, of: tagged, beside: ucx("tag_bw", size, gbps, true, twoDaemons), floor: 0.8, goal: 1.1})
	}
	small := perftest("ib_write_bw", 64<<10, gbps, smallMTU)
	list = append(list, row{name: small.name, of: small, beside: tcp(1500), floor: 0.6, goal: 0.8})

	copied := processVM(64 << 10)
	shared := perftest("ib_write_bw", 64<<10, gbps, place{memory: "auto"})
	unshared := perftest("ib_write_bw", 64<<10, gbps, place{memory: "process"})
	list = append(list,
		row{name: shared.name, of: shared, beside: copied, floor: 0.6, goal: 1},
		row{name: unshared.name, of: unshared, beside: copied, floor: 0.35, goal: 0.45})
	for _, size := range []int{64 << 10, 1 << 20} {
		tagged := ucx("tag_bw", size, gbps, false, oneDaemon)
		list = append(list, row{name: tagged.name, of: tagged, beside: ucx("tag_bw", size, gbps, true, oneDaemon), floor: 1, goal: 1.5})
	}

	for _, c := range []struct {
		where                            place
		latency, latencyGoal, rate, goal float64
	}{{oneDaemon, 1, 0.5, 3, 5}, {twoDaemons, 2.5, 1.5, 2, 3}} {
		latency, rate := ucx("tag_lat", 8, micros, true, c.where), ucx("tag_bw", 8, mega, true, c.where)
		for _, program := range []string{"ib_send_lat", "ib_write_lat"} {
			m := perftest(program, 8, micros, c.where)
			list = append(list, row{name: m.name, of: m, beside: latency, lower: true, floor: c.latency, goal: c.latencyGoal})
		}
		for _, program := range []string{"ib_write_bw", "ib_send_bw"} {
			m := perftest(program, 8, mega, c.where)
			list = append(list, row{name: m.name, of: m, beside: rate, floor: c.rate, goal: c.goal})
		}
	}

	for _, qps := range []int{1000, 10000} {
		many, one := roundRobin(qps, 1), roundRobin(1, min(qps, maxDepth))
		list = append(list, row{name: many.name, of: many, beside: one, floor: 0.6, goal: 0.8})
	}
	list = append(list,
		row{name: heapOfIdleQP.name, of: heapOfIdleQP, lower: true, floor: 8, goal: 4},
		row{name: cpuOfIdleQPs.name, of: cpuOfIdleQPs, lower: true, floor: 1, goal: 0.2})

	for _, c := range []struct {
		size  int
		floor float64
	}{{64, 1.5}, {1 << 10, 1}} {
		xdp := packetsOver(c.size, "xdp", fmt.Sprintf("BenchmarkPackets$/xdp/%d$/IPv4", c.size))
		packet := packetsOver(c.size, "packet", fmt.Sprintf("BenchmarkPackets$/packet/%d$/IPv4", c.size))
		each := packetsOver(c.size, "packet, one per system call", fmt.Sprintf("BenchmarkPacketAtATime$/^%d$", c.size))
		list = append(list,
			row{name: xdp.name, of: xdp, beside: packet, floor: c.floor, goal: c.floor},
			row{name: xdp.name + ", beside single packets", of: xdp, beside: each, floor: c.floor, goal: c.floor})
	}

	engines := func(n int) *measurement {
		return perftestQPs("ib_write_bw", 64<<10, 16, gbps, place{mtu: twoDaemons.mtu, engines: n})
	}
	two := engines(2)
	list = append(list, row{name: two.name, of: two, beside: engines(1), floor: 1, goal: 1})

	for _, k := range guestKernels {
		write := inGuest(k, "ib_write_bw", 64<<10, gbps, false)
		latency, kernels := inGuest(k, "ib_send_lat", 8, micros, false), inGuest(k, "ib_send_lat", 8, micros, true)
		list = append(list,
			row{name: write.name, of: write, beside: inGuest(k, "ib_write_bw", 64<<10, gbps, true), floor: 3, goal: 5},
			row{name: latency.name + ", average", of: latency, beside: kernels, what: mean, lower: true, floor: 1.5, goal: 1},
			row{name: latency.name + ", median", of: latency, beside: kernels, lower: true, floor: 4, goal: 2})
	}
	return list
}

// maxDepth is the largest depth of softroce perf.
const maxDepth = 8192
