package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A usage is the processor time of the daemons, and what the first one has sent, so far.
type usage struct {
	at, cpu time.Duration
	sent    uint64 // bytes
}

// watch samples the usage of the daemons until the returned function is called, which returns how
// many processors they use while they send.
func (t *testbed) watch(device string) (stop func() (float64, error)) {
	type outcome struct {
		processors float64
		err        error
	}
	end, done := make(chan struct{}), make(chan outcome, 1)
	go func() {
		var list []usage
		start := time.Now()
		for {
			at := time.Since(start)
			cpu, err := t.cpu()
			if err == nil {
				list = append(list, usage{at: at, cpu: cpu})
				list[len(list)-1].sent, err = t.daemons[0].sent(device)
			}
			if err != nil {
				done <- outcome{0, err}
				return
			}
			select {
			case <-time.After(usageInterval):
			case <-end:
				done <- outcome{processorsAtWork(list), nil}
				return
			}
		}
	}()
	return func() (float64, error) {
		close(end)
		o := <-done
		return o.processors, o.err
	}
}

const usageInterval = 50 * time.Millisecond

// processorsAtWork returns the processor time of each second in which traffic moves: from the first
// to the last interval between samples that has at least half of the highest rate. To connect
// thousands of queue pairs takes much longer, and sends little. 0 is no traffic.
func processorsAtWork(list []usage) float64 {
	rate := func(i int) float64 {
		return float64(list[i].sent-list[i-1].sent) / (list[i].at - list[i-1].at).Seconds()
	}
	highest := 0.0
	for i := 1; i < len(list); i++ {
		highest = max(highest, rate(i))
	}
	if highest == 0 {
		return 0
	}
	first, last := len(list), 0
	for i := 1; i < len(list); i++ {
		if rate(i) >= highest/2 {
			first, last = min(first, i-1), i
		}
	}
	return (list[last].cpu - list[first].cpu).Seconds() / (list[last].at - list[first].at).Seconds()
}

// sent returns the bytes that an interface in the network namespace of a process has sent.
func (p *process) sent(device string) (uint64, error) {
	file := fmt.Sprintf("/proc/%d/net/dev", p.cmd.Process.Pid)
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return sentBytes(string(b), device)
}

// sentBytes reads /proc/net/dev: behind the name of an interface are eight numbers of what it has
// received, and then those of what it has sent, bytes first.
func sentBytes(text, device string) (uint64, error) {
	const sent = 1 + 8
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > sent && f[0] == device+":" {
			return strconv.ParseUint(f[sent], 10, 64)
		}
	}
	return 0, fmt.Errorf("no interface %s in %q", device, text)
}
