package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/verbs"
)

// roundRobin measures WRITEs of 4 KiB over several queue pairs, with depth of them outstanding on
// each. perftest exchanges the addresses of so many one by one, which takes minutes.
func roundRobin(qps, depth int) *measurement {
	m := &measurement{name: fmt.Sprintf("softroce perf write 4 KiB, %d QPs of depth %d", qps, depth), unit: gbps}
	m.run = func(ctx context.Context, b *bench, _ int) (sample, error) {
		const limits = "/run/limits.yaml" // of a client
		if err := os.WriteFile(limits, []byte("limits:\n  qps: 20000\n"), 0o600); err != nil {
			return sample{}, err
		}
		t, err := b.open(ctx, twoDaemons, "--config", limits)
		if err != nil {
			return sample{}, err
		}
		defer t.close()
		port := harness.FreePort()
		perf := func(end int, more ...string) []string {
			return append([]string{b.softroce, "perf", "--socket", t.ends[end].socket, "--port", fmt.Sprint(port)}, more...)
		}
		for i := range t.ends {
			t.ends[i].prefix = nil // it is no program of libibverbs
		}
		stop := t.watch(interfaceName(twoDaemons.mtu))
		out, _, err := t.exchange(ctx, port, perf(1, "--server", "--once"), func(host string) []string {
			return perf(0, "write", "--client", host, "--size", "4KiB", "--qps", fmt.Sprint(qps), "--depth", fmt.Sprint(depth),
				"--duration", b.runTime.String(), "--latency", "0s", "--json")
		})
		processors, watchErr := stop()
		if err = errors.Join(err, watchErr); err != nil {
			return sample{}, err
		}
		var result struct {
			Bandwidth float64 `json:"bandwidth_gbps"`
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			return sample{}, err
		}
		if result.Bandwidth <= 0 || processors == 0 {
			return sample{}, fmt.Errorf("no traffic was seen: %s", out)
		}
		return sample{value: result.Bandwidth, cpu: processors / (result.Bandwidth * 1e9 / 8 / gib)}, nil
	}
	return m
}

// A mesh is queue pairs on two daemons, each connected with one of the other.
type mesh struct {
	*testbed
	nics [2]*verbs.Context
	pds  [2]*verbs.PD
	cqs  [2]*verbs.CQ
}

const meshDepth = 128 // of its queues

// openMesh starts two daemons, without queue pairs yet.
func (b *bench) openMesh(ctx context.Context, options ...string) (*mesh, error) {
	t, err := b.open(ctx, twoDaemons, options...)
	if err != nil {
		return nil, err
	}
	m := &mesh{testbed: t}
	for i, e := range t.ends {
		m.nics[i], err = verbs.Open(ctx, e.device, verbs.WithSocket(e.socket))
		if err == nil {
			m.pds[i], err = m.nics[i].AllocPD(ctx)
		}
		if err == nil {
			m.cqs[i], err = m.nics[i].CreateCQ(ctx, 2*meshDepth, nil)
		}
		if err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

// connect adds n pairs of queue pairs.
func (m *mesh) connect(ctx context.Context, n int) (err error) {
	options := verbs.DefaultConnectOptions()
	for range n {
		var qps [2]*verbs.QP
		var infos [2]verbs.Info
		for i := range qps {
			attr := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: m.cqs[i], RecvCQ: m.cqs[i],
				Cap: verbs.QPCap{MaxSendWR: meshDepth, MaxRecvWR: meshDepth, MaxSendSGE: 1, MaxRecvSGE: 1}}
			if qps[i], err = m.pds[i].CreateQP(ctx, attr); err != nil {
				return err
			}
			if infos[i], err = qps[i].Info(ctx, verbs.AnyGID); err != nil {
				return err
			}
		}
		if err = errors.Join(qps[0].Connect(ctx, infos[1], options), qps[1].Connect(ctx, infos[0], options)); err != nil {
			return err
		}
	}
	return nil
}

func (m *mesh) close() {
	for _, n := range m.nics {
		if n != nil {
			n.Close()
		}
	}
	m.testbed.close()
}

// idleQPs is the number of queue pairs of a daemon whose cost is measured while they are idle.
const idleQPs = 1000

// heapOfIdleQP measures the heap that a daemon needs for a connected queue pair. With GOGC=1 the
// garbage is a hundredth of it at most.
var heapOfIdleQP = &measurement{
	name: fmt.Sprintf("heap per connected idle QP of %d", idleQPs), unit: "KiB",
	run: func(ctx context.Context, b *bench, _ int) (sample, error) {
		const port = 9400
		os.Setenv("GOGC", "1") // of the daemons
		m, err := b.openMesh(ctx, "--metrics", fmt.Sprint("127.0.0.1:", port))
		os.Unsetenv("GOGC")
		if err != nil {
			return sample{}, err
		}
		defer m.close()
		before, err := heap(ctx, port)
		if err != nil {
			return sample{}, err
		}
		if err := m.connect(ctx, idleQPs); err != nil {
			return sample{}, err
		}
		after, err := heap(ctx, port)
		return sample{value: (after - before) / idleQPs / 1024}, err
	},
}

var heapMetric = regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)$`)

// heap returns the smallest heap, in bytes, of the daemon at the first end: the one soon after a
// collection.
func heap(ctx context.Context, port uint16) (least float64, err error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return rxelab.Dial(ctx, namespaces[0], netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
		},
	}}
	for range 20 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/metrics", nil)
		if err != nil {
			return 0, err
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return 0, err
		}
		found := heapMetric.FindSubmatch(text)
		if found == nil {
			return 0, fmt.Errorf("the metrics have no size of the heap: %s", text)
		}
		n, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return 0, err
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// cpuOfIdleQPs measures the share of one processor that a daemon uses for idle queue pairs.
var cpuOfIdleQPs = &measurement{
	name: fmt.Sprintf("CPU of a daemon with %d connected idle QPs", idleQPs), unit: "%",
	run: func(ctx context.Context, b *bench, _ int) (sample, error) {
		m, err := b.openMesh(ctx)
		if err != nil {
			return sample{}, err
		}
		defer m.close()
		if err := m.connect(ctx, idleQPs); err != nil {
			return sample{}, err
		}
		before, err := m.cpu()
		if err != nil {
			return sample{}, err
		}
		start := time.Now()
		time.Sleep(2 * b.runTime)
		passed := time.Since(start)
		after, err := m.cpu()
		return sample{value: 100 * (after - before).Seconds() / passed.Seconds() / float64(len(m.daemons))}, err
	},
}
