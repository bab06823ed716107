package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"softroce/e2e/harness"
)

// A measurement is something that can be measured again and again.
type measurement struct {
	name    string
	unit    string
	first   int          // operations of the first run; 0 if a run takes a time instead
	size    int          // bytes of an operation
	guest   *guestKernel // of the guest that it needs
	repeats int          // in each round, at most maxRepeats; 0 is 1
	run     func(ctx context.Context, b *bench, count int) (sample, error)
}

// maxRepeats is how often a round measures what a busy host disturbs for seconds: latencies in a
// guest, whose emulator uses all processors, are up to 1.8 times as long then.
const maxRepeats = 3

// Units.
const (
	gbps     = "Gb/s"
	micros   = "µs"
	mega     = "M/s"
	messages = 1e6 // for which processor time is given, if a row is about messages
	gib      = 1 << 30
)

// countFor returns how many operations take the time d if the first ones took what s says.
func (m *measurement) countFor(s sample, d time.Duration) int {
	var rate float64 // operations in a second
	switch m.unit {
	case gbps:
		rate = s.value * 1e9 / 8 / float64(m.size)
	case mega:
		rate = s.value * 1e6
	case micros:
		rate = 1e6 / (2 * s.mean) // a latency is half of a round trip
	}
	return max(m.first, int(math.Round(rate*d.Seconds())))
}

// perUnit returns processor time for a GiB or a million messages.
func (m *measurement) perUnit(cpu time.Duration, count int) float64 {
	switch m.unit {
	case gbps:
		return cpu.Seconds() / (float64(count) * float64(m.size) / gib)
	case micros:
		count *= 2 // messages of a round trip
		fallthrough
	case mega:
		return cpu.Seconds() / (float64(count) / messages)
	}
	return 0
}

// need reports a program that is not installed.
func need(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: scripts/setup bench installs it", err)
	}
	return nil
}

// tcp measures iperf3 over a veth pair, with no daemon that would see its packets. The processor
// time is that of both ends.
func tcp(mtu int) *measurement {
	m := &measurement{name: fmt.Sprintf("iperf3 TCP, MTU %d", mtu), unit: gbps}
	m.run = func(ctx context.Context, b *bench, _ int) (sample, error) {
		if err := need("iperf3"); err != nil {
			return sample{}, err
		}
		port := harness.FreePort()
		t := place{mtu: mtu}.withoutDaemon()
		server, err := t.ends[1].start(ctx, "iperf3", "-s", "-1", "-p", fmt.Sprint(port))
		if err != nil {
			return sample{}, err
		}
		if err := server.listening(ctx, port); err != nil {
			return sample{}, err
		}
		client, err := t.ends[0].start(ctx, "iperf3", "-c", t.ends[1].host, "-p", fmt.Sprint(port),
			"-t", fmt.Sprint(max(1, int(b.runTime.Seconds()))), "-J")
		if err != nil {
			return sample{}, err
		}
		out, err := client.wait(ctx)
		if err != nil {
			return sample{}, err
		}
		if _, err := server.wait(ctx); err != nil {
			return sample{}, err
		}
		bits, bytes, err := parseIperf3(out)
		if err != nil {
			return sample{}, err
		}
		cpu := client.spent() + server.spent()
		return sample{value: bits / 1e9, cpu: cpu.Seconds() / (bytes / gib)}, nil
	}
	return m
}

// parseIperf3 returns the rate at the receiver in bits per second, and the bytes received.
func parseIperf3(out string) (bits, bytes float64, err error) {
	var result struct {
		End struct {
			Received struct {
				Bytes float64
				Bits  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return 0, 0, fmt.Errorf("iperf3: %w in %s", err, out)
	}
	if result.End.Received.Bytes == 0 {
		return 0, 0, fmt.Errorf("iperf3: nothing was received: %s", out)
	}
	return result.End.Received.Bits, result.End.Received.Bytes, nil
}

// perftest measures one of the programs of the package perftest.
func perftest(program string, size int, unit string, where place) *measurement {
	return perftestQPs(program, size, 1, unit, where)
}

// perftestQPs measures a program of perftest with a number of queue pairs.
func perftestQPs(program string, size, qps int, unit string, where place) *measurement {
	name := fmt.Sprintf("%s %s, ", program, bytesOf(size))
	if qps > 1 {
		name += fmt.Sprintf("%d QPs, ", qps)
	}
	m := &measurement{name: name + where.String(), unit: unit, first: 2000, size: size}
	m.run = func(ctx context.Context, b *bench, count int) (sample, error) {
		if err := need(program); err != nil {
			return sample{}, err
		}
		t, err := b.open(ctx, where)
		if err != nil {
			return sample{}, err
		}
		defer t.close()
		port := harness.FreePort()
		each := (count + qps - 1) / qps
		// -F leaves the frequency of the processor alone; -x 1 is the first IPv4 GID.
		argv := []string{program, "-F", "-x", "1", "-s", fmt.Sprint(size), "-n", fmt.Sprint(each), "-p", fmt.Sprint(port)}
		if qps > 1 {
			argv = append(argv, "-q", fmt.Sprint(qps))
		}
		if unit != micros {
			argv = append(argv, "--report_gbits")
		}
		if where.mtu == 1500 {
			argv = append(argv, "-m", "1024")
		}
		out, cpu, err := t.exchange(ctx, port, argv, func(host string) []string { return append(argv, host) })
		if err != nil {
			return sample{}, err
		}
		result, err := parsePerftest(out, unit)
		result.cpu = m.perUnit(cpu, each*qps)
		return result, err
	}
	return m
}

// parsePerftest reads the last line with numbers. Of a bandwidth test it has bytes, iterations,
// peak and average bandwidth in Gb/s, and millions of messages a second; of a latency test bytes,
// iterations, minimum, maximum, typical and average latency in microseconds, and more.
func parsePerftest(out, unit string) (sample, error) {
	for line := range reverseLines(out) {
		f := numbers(line)
		switch {
		case unit == micros && len(f) >= 6:
			return positive(sample{value: f[4], mean: f[5]}, out)
		case unit == gbps && len(f) == 5:
			return positive(sample{value: f[3]}, out)
		case unit == mega && len(f) == 5:
			return positive(sample{value: f[4]}, out)
		}
	}
	return sample{}, fmt.Errorf("no result: %s", out)
}

// positive returns a result of a program with this output, or an error if it is 0: the program has
// stalled, and prints too few digits for its rate.
func positive(s sample, out string) (sample, error) {
	if s.value == 0 {
		return sample{}, fmt.Errorf("a result of 0: %s", out)
	}
	return s, nil
}

// ucx measures ucx_perftest over softroce, or over TCP between the same ends.
func ucx(test string, size int, unit string, overTCP bool, where place) *measurement {
	name := fmt.Sprintf("ucx_perftest %s %s, %s", test, bytesOf(size), where)
	if overTCP {
		name = fmt.Sprintf("UCX tcp %s %s, %s", test, bytesOf(size), where.network())
	}
	m := &measurement{name: name, unit: unit, first: 2000, size: size}
	m.run = func(ctx context.Context, b *bench, count int) (sample, error) {
		if err := need("ucx_perftest"); err != nil {
			return sample{}, err
		}
		t := where.withoutDaemon()
		device := "lo"
		if where.mtu != 0 {
			device = interfaceName(where.mtu)
		}
		devices := [2]string{device, device}
		transport := "tcp"
		if !overTCP {
			var err error
			if t, err = b.open(ctx, where); err != nil {
				return sample{}, err
			}
			defer t.close()
			transport, devices = "rc_v", [2]string{t.ends[0].device + ":1", t.ends[1].device + ":1"}
		}
		port := harness.FreePort()
		argv := func(end int, more ...string) []string {
			return append([]string{"env", "UCX_TLS=" + transport, "UCX_NET_DEVICES=" + devices[end],
				"ucx_perftest", "-p", fmt.Sprint(port)}, more...)
		}
		const warmUp = 500
		out, cpu, err := t.exchange(ctx, port, argv(1), func(host string) []string {
			return argv(0, host, "-t", test, "-s", fmt.Sprint(size), "-n", fmt.Sprint(count), "-w", fmt.Sprint(warmUp), "-f")
		})
		if err != nil {
			return sample{}, err
		}
		result, err := parseUCX(out, unit)
		if !overTCP {
			result.cpu = m.perUnit(cpu, count+warmUp)
		}
		return result, err
	}
	return m
}

// parseUCX reads the line of numbers that ucx_perftest -f prints: iterations; median and two
// averages of the time in microseconds; two of the bandwidth in MiB/s; two of messages a second.
// The second ones are of the whole run.
func parseUCX(out, unit string) (sample, error) {
	for line := range reverseLines(out) {
		f := numbers(strings.TrimPrefix(strings.TrimSpace(line), "Final:"))
		if len(f) != 8 {
			continue
		}
		switch unit {
		case gbps:
			return positive(sample{value: f[5] * (1 << 20) * 8 / 1e9}, out)
		case mega:
			return positive(sample{value: f[7] / 1e6}, out)
		case micros:
			return positive(sample{value: f[1], mean: f[3]}, out)
		}
	}
	return sample{}, fmt.Errorf("no result: %s", out)
}

func reverseLines(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		lines := strings.Split(text, "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			if !yield(lines[i]) {
				return
			}
		}
	}
}

var number = regexp.MustCompile(`^-?\d+(\.\d+)?$`)

// numbers returns the fields of a line if the first four are numbers. perftest prints "-nan" among
// the later ones, which counts as 0.
func numbers(line string) []float64 {
	fields := strings.Fields(line)
	list := make([]float64, len(fields))
	for i, f := range fields {
		if !number.MatchString(f) {
			if i < 4 {
				return nil
			}
			continue
		}
		list[i], _ = strconv.ParseFloat(f, 64)
	}
	return list
}
