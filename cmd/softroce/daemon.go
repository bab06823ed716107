package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/nicspec"
	"softroce/internal/web"
)

type daemonCmd struct {
	Socket  string         `placeholder:"PATH" env:"SOFTROCE_SOCKET" complete:"<files>" help:"The socket to create (default: ${socket}, or this user's if it may not create that)."`
	NIC     []string       `name:"nic" sep:"none" placeholder:"NAME=LINK" complete:"<nic=link>" help:"A NIC and its link: fabric[:ADDR,…], packet:IFACE, udp:IFACE, xdp:IFACE, auto:IFACE, or dgram:LOCAL:PORT,REMOTE:PORT,ADDR/BITS. A range in brackets stands for several NICs: r[0-3]=fabric:192.0.2.[1-4]. May be repeated. Default: softroce0 (192.0.2.1, 2001:db8::1) and softroce1 (192.0.2.2, 2001:db8::2) on a fabric."`
	Fabric  string         `placeholder:"FILE" complete:"<files>" help:"Let the fabric be the network of switches of a topology file, as softroce sim has it. Without --nic, there is a NIC for each of the file."`
	Metrics string         `placeholder:"ADDR" help:"Serve Prometheus metrics on HOST:PORT."`
	Web     string         `placeholder:"ADDR" help:"Serve a page that shows the NICs, and the metrics, on HOST:PORT."`
	Capture string         `placeholder:"FILE[,OPTION=VALUE…]" complete:"<files>" help:"Record packets to a pcapng file: all, or those that the options select, which are the flags of softroce capture, such as count=100."`
	Block   bool           `name:"capture-blocking" help:"If the file of the capture is slow, let the NICs wait for it instead of losing packets of the capture."`
	Fault   string         `placeholder:"FILE" complete:"<files>" help:"Apply the fault program in FILE to packets."`
	Config  string         `placeholder:"FILE" complete:"<files>" help:"Read the configuration from a YAML file; flags override it."`
	Engines *int           `placeholder:"N" help:"Threads over which the NICs are distributed (default: 1, at most 64)."`
	Spin    *time.Duration `placeholder:"DURATION" help:"How long an idle engine spins before it sleeps (default: 50us)."`
	While   bool           `name:"while-used" help:"Exit when the last client disconnects, or if none connects within 10 seconds."`
	Verbose bool           `short:"v" help:"Log the requests of clients."`
}

func (d *daemonCmd) Run(e *env) error {
	context.AfterFunc(e, func() { exitLate(e.err) })
	c, err := d.config(e)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if d.Verbose {
		level = slog.LevelDebug
	}
	signal.Ignore(syscall.SIGPIPE) // a log reader that goes away must not end the NICs
	lines := daemon.NewLogWriter(e.err)
	defer lines.Flush()
	log := slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: level}))
	running, err := daemon.Start(c, release(), log)
	if err != nil {
		return err
	}
	defer running.Close()
	out := e.out
	if file, _ := daemon.SplitCapture(c.Capture); file == "-" {
		out = e.err
	}
	var page *web.Server
	if c.Web != "" {
		if page, err = web.Serve(running, c.Web, release(), log); err != nil {
			return errors.Join(err, running.Close())
		}
		defer page.Close()
	}
	if err := running.WriteReady(out); err != nil {
		return err
	}
	if page != nil {
		fmt.Fprintf(out, "web %s (the operator's token is in %s)\n", page.URL(), page.TokenFile())
	}
	if err := daemon.NotifyReady(); err != nil {
		log.Warn("cannot notify the service manager", "reason", err)
	}
	running.Wait(e)
	if page != nil {
		err = page.Close()
	}
	return errors.Join(err, running.Close(), running.WriteEnd(out))
}

// errBlockingAlone rejects --capture-blocking without a capture.
var errBlockingAlone = usagef("--capture-blocking requires --capture")

// exitLate ends the process if it has not ended by itself some time after a signal: it may be
// blocked by a file that it reads at startup, or by standard error.
func exitLate(errs io.Writer) {
	time.Sleep(daemon.CloseTimeout + exitGrace)
	go fmt.Fprintln(errs, "softroce: the daemon is blocked by a file or by its output; exiting without cleaning up")
	time.Sleep(exitGrace)
	os.Exit(exitFailed)
}

// exitGrace is how long messages about a shutdown that hangs may take.
const exitGrace = 250 * time.Millisecond

// parseNICs returns the NICs of --nic.
func parseNICs(flags []string) (nics []nicspec.NIC, err error) {
	for _, s := range flags {
		l, err := nicspec.ParseAll(s)
		if err != nil {
			return nil, &usageError{err}
		}
		nics = append(nics, l...)
	}
	return nics, nil
}

// config returns the configuration of the file, overridden by the flags.
func (d *daemonCmd) config(e *env) (c daemon.Config, err error) {
	if d.Config != "" {
		if c, err = daemon.ReadConfig(d.Config); err != nil {
			return c, err
		}
	}
	nics, err := parseNICs(d.NIC)
	if err != nil {
		return c, err
	}
	if nics != nil {
		c.NICs = nics
	}
	for _, f := range []struct {
		flag string
		to   *string
	}{{d.Fabric, &c.Fabric}, {d.Socket, &c.Socket}, {d.Metrics, &c.Metrics}, {d.Web, &c.Web}, {d.Capture, &c.Capture}, {d.Fault, &c.Fault}} {
		if f.flag != "" {
			*f.to = f.flag
		}
	}
	if d.Config == "-" && c.Fault == "-" {
		return c, usagef("standard input is either the configuration or the fault program")
	}
	if c.Socket == "" {
		if c.Socket, err = control.ListenSocket(); err != nil {
			return c, err
		}
	}
	c.WhileUsed = d.While
	if d.Block && c.Capture == "" {
		return c, errBlockingAlone
	}
	c.CaptureBlocking = c.CaptureBlocking || d.Block
	if d.Engines != nil {
		if c.Engines = *d.Engines; c.Engines == 0 {
			return c, usagef("engines 0: want 1 to %d", daemon.MaxEngines)
		}
	}
	if d.Spin != nil {
		if c.Spin, err = daemon.SpinOf(*d.Spin); err != nil {
			return c, &usageError{err}
		}
	}
	if err := c.Validate(); err != nil {
		if d.Config == "" {
			err = &usageError{err}
		}
		return c, err
	}
	return c, nil
}
