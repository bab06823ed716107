package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// A guestKernel is the kernel of a guest. The rxe of Linux 6.1, the default in Debian 12, processes
// packets in the system calls of the programs. That of Linux 6.12 does it in threads of the kernel.
type guestKernel struct {
	pkg  string // of Debian
	name string // in the name of a row, after "guest"
}

var guestKernels = [2]guestKernel{{rxelab.KernelStable, ""}, {"linux-image-6.12-amd64", " with Linux 6.12"}}

// A guest is booted by the first measurement that needs it. It ends with the sandbox. Its
// processors are idle while others are measured.
func (b *bench) guest(ctx context.Context, k guestKernel) (*rxelab.Guest, error) {
	if lab := b.labs[k]; lab != nil {
		return lab.Guests[0], nil
	}
	lab, err := rxelab.Up(ctx, rxelab.Options{Kernel: k.pkg, Processors: 2})
	if err != nil {
		return nil, err
	}
	if err := lab.Guests[0].Put(ctx, b.softroce, guestBinary); err != nil {
		lab.Down()
		return nil, err
	}
	b.labs[k] = lab
	return lab.Guests[0], nil
}

const guestBinary = "/tmp/softroce"

// build downloads the kernel, and what else the lab needs, which the sandbox could not.
func (k guestKernel) build() error {
	cmd := exec.Command(filepath.Join(rxelab.Dir(), "lab"), "build")
	cmd.Env = append(os.Environ(), "RXELAB_KERNEL="+k.pkg)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lab build: %w", err)
	}
	return nil
}

// inGuest measures a program of perftest in a guest with two processors, from one NIC to itself:
// one of softroce, or the kernel's.
func inGuest(k guestKernel, program string, size int, unit string, rxe bool) *measurement {
	nic, prefix, device := "softroce", guestBinary+" run -q --socket /tmp/s --device softroce0 -- ", "softroce0"
	if rxe {
		nic, prefix, device = "rxe", "", "rxe0"
	}
	m := &measurement{name: fmt.Sprintf("%s %s, %s in a guest%s", program, bytesOf(size), nic, k.name), unit: unit, first: 500, size: size, guest: &k}
	if unit == micros {
		m.repeats = maxRepeats
	}
	m.run = func(ctx context.Context, b *bench, count int) (sample, error) {
		g, err := b.guest(ctx, k)
		if err != nil {
			return sample{}, err
		}
		ctx, cancel := context.WithCancel(ctx) // ends the server and the daemon, too
		defer cancel()
		var daemon string // its process
		var before time.Duration
		if !rxe {
			// It accepts clients when it has printed the socket.
			d, err := g.Start(ctx, runLimit, guestBinary+" daemon --socket /tmp/s")
			if err != nil {
				return sample{}, err
			}
			defer func() { // the next daemon has the same socket
				cancel()
				d.Wait()
			}()
			for !strings.Contains(d.Output(), "\nsocket ") {
				select {
				case <-d.Done():
					return sample{}, fmt.Errorf("daemon in the guest: %s", d.Output())
				case <-time.After(50 * time.Millisecond):
				}
			}
			if daemon, err = g.Run(ctx, runLimit, "pidof softroce"); err == nil {
				before, err = processTime(ctx, g, daemon)
			}
			if err != nil {
				return sample{}, fmt.Errorf("processor time of the daemon: %w", err)
			}
		}
		port := harness.FreePort()
		command := fmt.Sprintf("%s%s -F -d %s -x 1 -s %d -n %d -p %d", prefix, program, device, size, count, port)
		if unit != micros {
			command += " --report_gbits"
		}
		server, err := g.Start(ctx, runLimit, command)
		if err != nil {
			return sample{}, err
		}
		if err := g.WaitListen(ctx, port); err != nil {
			return sample{}, fmt.Errorf("%w: %s", err, server.Output())
		}
		out, err := g.Run(ctx, runLimit, command+" 127.0.0.1")
		if err != nil {
			return sample{}, fmt.Errorf("%w: %s", err, out)
		}
		result, err := parsePerftest(out, unit)
		if err != nil || rxe {
			return result, err
		}
		after, err := processTime(ctx, g, daemon)
		result.cpu = m.perUnit(after-before, count)
		return result, err
	}
	return m
}

// processTime returns the processor time of a process in a guest. rxe has no process of its own.
func processTime(ctx context.Context, g *rxelab.Guest, pid string) (time.Duration, error) {
	stat, err := g.Run(ctx, runLimit, fmt.Sprintf("cat /proc/%s/stat", strings.TrimSpace(pid)))
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, stat)
	}
	return cpuTicks(stat)
}

// cpuTicks reads /proc/PID/stat: the processor time of a process whose name has no space.
func cpuTicks(stat string) (time.Duration, error) {
	const user, system, ticks = 13, 14, 100 // fields, and USER_HZ
	f := strings.Fields(stat)
	if len(f) <= system || !strings.HasPrefix(f[1], "(") {
		return 0, fmt.Errorf("no processor time: %q", stat)
	}
	var sum int
	for _, field := range f[user : system+1] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("processor time: %w in %q", err, stat)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
}
