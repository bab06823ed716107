package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// With -profile, perf records each daemon while a program runs, with call stacks:
//
//	DIR/ib_write_bw-64-KiB-two-daemons-client.data    of the daemon at the client's end
//	DIR/ib_write_bw-64-KiB-two-daemons-client.txt     its functions, by the time spent in them
//	DIR/ib_write_bw-64-KiB-two-daemons-client.svg     a flame graph, if flamegraph of npm is installed
//
// The files are those of the last run.

// profileOf returns the beginning of the names of a measurement's files, or nothing without
// -profile.
func (b *bench) profileOf(m *measurement) string {
	if b.profiles == "" {
		return ""
	}
	return filepath.Join(b.profiles, strings.Trim(regexp.MustCompile(`\W+`).ReplaceAllString(m.name, "-"), "-"))
}

// record records the daemons until the returned function is called.
func (t *testbed) record(ctx context.Context) (stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, s := range stops {
			err = errors.Join(err, s())
		}
		return err
	}
	if t.profile == "" {
		return stop, nil
	}
	if err := errors.Join(need("perf"), os.MkdirAll(filepath.Dir(t.profile), 0o755)); err != nil {
		return nil, err
	}
	for i, d := range t.daemons {
		name := t.profile
		if len(t.daemons) == 2 {
			name += [2]string{"-client", "-server"}[i]
		}
		cmd := exec.CommandContext(ctx, "perf", "record", "-q", "-g", "-F", "999", "-o", name+".data", "-p", fmt.Sprint(d.cmd.Process.Pid))
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		stops = append(stops, func() error {
			cmd.Process.Signal(unix.SIGINT)
			cmd.Wait() // it fails because of the signal
			return draw(name)
		})
	}
	// perf does not say when it has begun.
	time.Sleep(perfStart)
	return stop, nil
}

const perfStart = 300 * time.Millisecond

// draw makes a list of functions and a flame graph of a profile.
func draw(name string) error {
	commands := `perf report -i "$0.data" --no-children --stdio -g none --percent-limit 0.5 2>/dev/null | grep -v '^#' >"$0.txt"`
	if _, err := exec.LookPath("flamegraph"); err == nil {
		// The scripts in its output have operators that XML does not allow there.
		commands += `; perf script -i "$0.data" -F comm,tid,time,event,ip,sym,dso 2>/dev/null |
			flamegraph --inputtype perf --minwidth 2 --titletext "${0##*/}" | sed 's/&&/\&amp;\&amp;/g' >"$0.svg"`
	}
	if out, err := exec.Command("bash", "-o", "pipefail", "-c", commands, name).CombinedOutput(); err != nil {
		return fmt.Errorf("profile %s.data: %w: %s", name, err, out)
	}
	return nil
}
