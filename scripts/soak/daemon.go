package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softroce/internal/control"
	"softroce/internal/output"
	"softroce/verbs"
)

// The NICs of the daemon. nicA and nicB reach each other.
const (
	nicA, nicB = "a", "b"
	addrB      = "10.1.0.2"
)

// A daemon is a softroce daemon.
type daemon struct {
	cmd     *exec.Cmd
	socket  string
	metrics string // URL
	output  output.Buffer
	ended   chan error
}

func startDaemon(binary, socket, faults string) (*daemon, error) {
	d := &daemon{socket: socket, ended: make(chan error, 1)}
	d.cmd = exec.Command(binary, "daemon", "--socket", socket, "--fault", faults, "--metrics", "127.0.0.1:0",
		"--nic", nicA+"=fabric:10.1.0.1/24", "--nic", nicB+"=fabric:"+addrB+"/24")
	d.cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	d.cmd.SysProcAttr = endWithParent()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { d.ended <- d.cmd.Wait() }()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := verbs.Open(context.Background(), nicB, verbs.WithSocket(socket))
		if m := metricsURL.FindStringSubmatch(d.output.String()); err == nil && m != nil {
			d.metrics = m[1]
			return d, c.Close()
		}
		if time.Now().After(limit) {
			d.kill()
			return nil, fmt.Errorf("the daemon does not start: %w\n%s", err, d.log())
		}
	}
}

// kill ends the daemon, if it still runs.
func (d *daemon) kill() {
	if d.cmd.Process.Kill() == nil {
		<-d.ended
	}
}

// log returns the output of a daemon that has ended.
func (d *daemon) log() string {
	select {
	case <-d.ended:
		return d.output.String()
	case <-time.After(time.Second):
		return "it still runs"
	}
}

// stacks ends the daemon and returns the stacks of its goroutines.
func (d *daemon) stacks() string {
	if err := d.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		return err.Error()
	}
	<-d.ended
	return d.output.String()
}

var (
	metricsURL    = regexp.MustCompile(`(?m)^metrics (http://\S+)$`)
	goroutineLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)
)

// goroutines returns how many goroutines the daemon has.
func (d *daemon) goroutines() (int, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(d.metrics)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	m := goroutineLine.FindSubmatch(text)
	if m == nil {
		return 0, errors.New("the daemon's metrics have no go_goroutines")
	}
	return strconv.Atoi(string(m[1]))
}

// fewestGoroutines returns how many goroutines the daemon has while it has no client.
func (d *daemon) fewestGoroutines() (int, error) {
	least, err := d.goroutines()
	for range 10 {
		time.Sleep(20 * time.Millisecond)
		n, again := d.goroutines()
		least, err = min(least, n), errors.Join(err, again)
	}
	return least, err
}

// goroutineLimit is how long the goroutines of the last clients may take to end on a busy machine.
const goroutineLimit = 20 * time.Second

// settleGoroutines waits until the daemon has at most want goroutines, and returns how many it has.
func (d *daemon) settleGoroutines(want int) (int, error) {
	for limit := time.Now().Add(goroutineLimit); ; time.Sleep(50 * time.Millisecond) {
		n, err := d.goroutines()
		if err != nil || n <= want || time.Now().After(limit) {
			return n, err
		}
	}
}

// holdings are what a daemon holds.
type holdings struct{ objects, descriptors, mappings int }

func (h holdings) String() string {
	return fmt.Sprintf("%d objects, %d descriptors, %d shared mappings", h.objects, h.descriptors, h.mappings)
}

func (d *daemon) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(d.cmd.Process.Pid), name)
}

// holds measures what the daemon holds. The connection that asks is not counted.
func (d *daemon) holds() (h holdings, err error) {
	var snapshot map[string]json.RawMessage
	if err := d.snapshot(&snapshot); err != nil {
		return h, err
	}
	var devices []map[string]json.RawMessage
	var clients, ids []json.RawMessage
	err = errors.Join(json.Unmarshal(snapshot["devices"], &devices), json.Unmarshal(snapshot["clients"], &clients),
		json.Unmarshal(snapshot["cm_ids"], &ids))
	h.objects = max(len(clients)-1, 0) + len(ids)
	for _, dev := range devices {
		for _, kind := range []string{"contexts", "qps", "mrs", "cqs", "pds", "mws", "dms", "srqs", "ahs", "groups"} {
			var list []json.RawMessage
			err = errors.Join(err, json.Unmarshal(dev[kind], &list))
			h.objects += len(list)
		}
	}
	fds, fdErr := os.ReadDir(d.proc("fd"))
	maps, mapErr := os.ReadFile(d.proc("maps"))
	h.descriptors, h.mappings = len(fds), bytes.Count(maps, []byte("rw-s"))
	return h, errors.Join(err, fdErr, mapErr)
}

// settle waits until the daemon holds no more than before, as clients that left are cleaned up.
func (d *daemon) settle(before holdings) (h holdings, err error) {
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if h, err = d.holds(); err != nil {
			return h, err
		}
		if h.objects <= before.objects && h.descriptors <= before.descriptors && h.mappings <= before.mappings {
			return h, nil
		}
		if time.Now().After(limit) {
			return h, fmt.Errorf("the daemon holds %v after all clients left; %v at the beginning", h, before)
		}
	}
}

func (d *daemon) snapshot(v any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := control.Dial(ctx, d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// counters returns the counters of the daemon's NICs as JSON, for a report.
func (d *daemon) counters() []byte {
	var snapshot struct {
		Devices []struct{ Counters json.RawMessage }
	}
	if err := d.snapshot(&snapshot); err != nil {
		return []byte(err.Error())
	}
	b, _ := json.Marshal(snapshot.Devices)
	return b
}

// lost returns how many packets the fault program has dropped.
func (d *daemon) lost() (n uint64, err error) {
	var snapshot struct {
		Devices []struct {
			Faults []struct{ Acted uint64 }
		}
	}
	err = d.snapshot(&snapshot)
	for _, dev := range snapshot.Devices {
		for _, f := range dev.Faults {
			n += f.Acted
		}
	}
	return n, err
}

// resident returns the resident memory of the daemon's own, in KiB: without that of its clients.
func (d *daemon) resident() (int, error) {
	b, err := os.ReadFile(d.proc("status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")))
		}
	}
	return 0, errors.New("its status has no RssAnon")
}

func median(l []int) int {
	if len(l) == 0 {
		return 0
	}
	l = slices.Sorted(slices.Values(l))
	return l[len(l)/2]
}
