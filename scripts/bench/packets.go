package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// wireTests is the test binary of package wire, which make builds. Its benchmarks move packets over
// a link.
const wireTests = "bin/wire.test"

// packetsOver measures a benchmark that moves packets, of which no two can become a super-packet,
// over a veth pair of its own. The processor time is that of both ends.
func packetsOver(size int, name, benchmark string) *measurement {
	m := &measurement{name: fmt.Sprintf("packets of %s, %s", bytesOf(size), name), unit: mega, first: 20000}
	m.run = func(ctx context.Context, b *bench, count int) (sample, error) {
		out, err := exec.CommandContext(ctx, wireTests, "-test.run", "^$", "-test.bench", benchmark,
			"-test.benchtime", fmt.Sprintf("%dx", count)).CombinedOutput()
		if err != nil {
			return sample{}, fmt.Errorf("%s, which make bench builds: %s: %w: %s", wireTests, benchmark, err, out)
		}
		return parseBenchmark(string(out))
	}
	return m
}

// parseBenchmark reads the line of the only benchmark that has run: its name, how often it was
// carried out, and pairs of a number and a unit.
func parseBenchmark(out string) (s sample, err error) {
	for line := range reverseLines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			switch {
			case err != nil:
				return sample{}, fmt.Errorf("%w in %s", err, line)
			case f[i+1] == "Mpackets/s":
				s.value = v
			case f[i+1] == "cpu-ns/op":
				s.cpu = v * messages / 1e9
			}
		}
		if s.value > 0 {
			return s, nil
		}
	}
	return sample{}, fmt.Errorf("no result: %s", out)
}
