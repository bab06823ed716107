package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/e2e/harness"
	"softroce/internal/output"
	"softroce/verbs"
)

// A place is where the two programs of a measurement run: on the NICs of one daemon, or on those of
// two daemons at the ends of a veth pair.
type place struct {
	mtu     int    // of the veth pair; 0: one daemon
	engines int    // of each NIC at the veth pair, unless it is the default
	memory  string // softroce run --memory, unless it is the default
}

// An end is where one of the two programs runs.
type end struct {
	namespace string
	prefix    []string // of the command line
	host      string   // address at which the other end reaches its TCP servers
	device    string   // NIC; empty without softroce
	socket    string   // of its daemon
}

// A testbed is a place with its daemons. The client runs at the first end.
type testbed struct {
	ends    [2]end
	daemons []*process
	profile string // the beginning of the names of files with profiles; none if it is empty
}

// A process is a running program.
type process struct {
	cmd    *exec.Cmd
	output output.Buffer
	ended  chan error
}

// start starts a command in the namespace of an end. It is killed when ctx ends.
func (e *end) start(ctx context.Context, argv ...string) (*process, error) {
	argv = append(append([]string{"netns", "exec", e.namespace}, e.prefix...), argv...)
	p := &process{cmd: exec.CommandContext(ctx, "ip", argv...), ended: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// wait waits for the end of a process and returns what it printed.
func (p *process) wait(ctx context.Context) (string, error) {
	err := <-p.ended
	p.ended <- err
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", p.name(), errors.Join(err, context.Cause(ctx)), p.output.String())
	}
	return p.output.String(), nil
}

// name is the command line without the namespace.
func (p *process) name() string { return strings.Join(p.cmd.Args[4:], " ") }

// listening waits until a process listens on a TCP port.
func (p *process) listening(ctx context.Context, port int) error {
	return p.until(ctx, func() bool { return harness.Listens(p.cmd.Process.Pid, port) })
}

func (p *process) until(ctx context.Context, ready func() bool) error {
	for !ready() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", p.name(), context.Cause(ctx), p.output.String())
		case err := <-p.ended:
			p.ended <- err
			return fmt.Errorf("%s ended early: %w: %s", p.name(), err, p.output.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// cpu returns the processor time of a running process.
func (p *process) cpu() (time.Duration, error) {
	const cpuclockSched = 2 // of the kernel's MAKE_PROCESS_CPUCLOCK
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|cpuclockSched), &t); err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name(), err)
	}
	return time.Duration(t.Nano()), nil
}

// spent returns the processor time of a process that has ended.
func (p *process) spent() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// open starts the daemons of a place, with these options.
func (b *bench) open(ctx context.Context, p place, options ...string) (*testbed, error) {
	t := &testbed{profile: b.profileOf(b.running)}
	sockets, nics := []string{"/run/ab"}, [][]string{nil}
	if p.mtu != 0 {
		link := "auto:" + interfaceName(p.mtu)
		if p.engines != 0 {
			link += fmt.Sprint(",engines=", p.engines)
		}
		nic := []string{"--nic", "rdma0=" + link}
		sockets, nics = []string{"/run/a", "/run/b"}, [][]string{nic, nic}
	}
	for i, socket := range sockets {
		e := end{namespace: namespaces[i]}
		d, err := e.start(ctx, slices.Concat([]string{b.softroce, "daemon", "--socket", socket}, nics[i], options)...)
		if err != nil {
			t.close()
			return nil, err
		}
		t.daemons = append(t.daemons, d)
		err = d.until(ctx, func() bool {
			c, err := verbs.Open(ctx, "", verbs.WithSocket(socket))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		if err != nil {
			t.close()
			return nil, err
		}
	}
	for i := range t.ends {
		e := &t.ends[i]
		if p.mtu == 0 {
			*e = end{namespace: namespaces[0], host: "127.0.0.1", device: fmt.Sprint("softroce", i), socket: sockets[0]}
		} else {
			*e = end{namespace: namespaces[i], host: address(p.mtu, i), device: "rdma0", socket: sockets[i]}
		}
		e.prefix = []string{b.softroce, "run", "-q", "--socket", e.socket, "--device", e.device}
		if p.memory != "" {
			e.prefix = append(e.prefix, "--memory="+p.memory)
		}
		e.prefix = append(e.prefix, "--")
	}
	return t, nil
}

// withoutDaemon returns the ends of a place for programs that use TCP.
func (p place) withoutDaemon() *testbed {
	t := &testbed{}
	for i := range t.ends {
		if p.mtu == 0 {
			t.ends[i] = end{namespace: namespaces[0], host: "127.0.0.1"}
		} else {
			t.ends[i] = end{namespace: namespaces[i], host: address(p.mtu, i)}
		}
	}
	return t
}

// close ends the daemons.
func (t *testbed) close() {
	for _, d := range t.daemons {
		d.cmd.Process.Signal(syscall.SIGTERM)
		<-d.ended
	}
}

// cpu returns the processor time of the daemons.
func (t *testbed) cpu() (sum time.Duration, err error) {
	for _, d := range t.daemons {
		spent, e := d.cpu()
		sum, err = sum+spent, errors.Join(err, e)
	}
	return sum, err
}

// exchange runs a server and then its client, and returns what the client printed and the processor
// time that the daemons used meanwhile. The client's command line gets the server's address.
func (t *testbed) exchange(ctx context.Context, port int, server []string, client func(host string) []string) (string, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving, err := t.ends[1].start(ctx, server...)
	if err != nil {
		return "", 0, err
	}
	if err := serving.listening(ctx, port); err != nil {
		return "", 0, err
	}
	stop, err := t.record(ctx)
	if err != nil {
		return "", 0, err
	}
	before, err := t.cpu()
	if err != nil {
		return "", 0, err
	}
	p, err := t.ends[0].start(ctx, client(t.ends[1].host)...)
	if err != nil {
		return "", 0, err
	}
	out, err := p.wait(ctx)
	after, cpuErr := t.cpu()
	cpuErr = errors.Join(cpuErr, stop())
	if err != nil {
		return "", 0, fmt.Errorf("%w\nserver: %s", err, serving.output.String())
	}
	if _, err := serving.wait(ctx); err != nil {
		return "", 0, err
	}
	return out, after - before, cpuErr
}
