package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"softroce/capture"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/wire"
)

type replayCmd struct {
	File    string `arg:"" complete:"<files>" help:"A pcap, pcapng or ERF file; - is standard input."`
	Strict  bool   `help:"Also compare what the specification leaves to the implementation."`
	JSON    bool   `name:"json" help:"Print the report as JSON."`
	Onto    string `placeholder:"LINK" complete:"<links>" help:"Replay to a live NIC at the other end of a link: packet:IFACE, udp:IFACE, xdp:IFACE, dgram:…, or to a simulated NIC: fabric."`
	Program string `placeholder:"COMMAND" complete:"<programs>" help:"The verbs program on that NIC's host: a command, or tcp:HOST:PORT."`
	Side    string `enum:"both,requester,responder" default:"both" help:"Which side of the connections to replay: requester, responder, or both in turn."`
	Fast    bool   `help:"Replay as fast as possible, without the captured timing."`
	Untimed bool   `help:"Accept retransmissions that come too early. For hosts whose clock stops and catches up, such as virtual machines."`
	Output  string `short:"o" placeholder:"FILE" complete:"<files>" help:"Record the packets of the replay; - is standard output, and the report is then printed to standard error."`
}

// Run exits with status 1 if the replay found a difference, and 3 if not all could be compared.
func (r *replayCmd) Run(e *env) error {
	if r.Onto != "" {
		return r.play(e)
	}
	if r.Program != "" || r.Fast || r.Untimed || r.Output != "" || r.Side != "both" {
		return usagef("--program, --side, --fast, --untimed and -o require --onto")
	}
	in, err := e.openCapture(r.File, 1)
	if err != nil {
		return err
	}
	defer in.Close()
	p := comparison{in: in}
	stop := e.showProgress(&p)
	var report *replay.Report
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err = p.run(e, r.Strict)
	}()
	select {
	case <-done:
	case <-e.Done():
		select {
		case <-done:
		case <-time.After(interruptTime):
			stop()
			fmt.Fprintf(e.err, "softroce: %v\n", &p)
			return e.Err()
		}
	}
	stop()
	if report == nil {
		if e.Err() != nil {
			fmt.Fprintf(e.err, "softroce: %v, no flow was compared\n", &p)
		}
		return err
	}
	if reported := e.report(report, r.JSON, report.Differences()); err == nil {
		err = reported
	}
	return err
}

// interruptTime is how long a replay may take to end after a signal. A flow of many packets takes
// longer.
const interruptTime = time.Second

// A comparison is a replay that runs.
type comparison struct {
	in          *input
	done, total atomic.Int64 // flows
}

func (c *comparison) run(e *env, strict bool) (*replay.Report, error) {
	from, err := c.in.Reader()
	if err != nil {
		return nil, err
	}
	return replay.Read(from, replay.Options{Strict: strict, Progress: func(done, total int) error {
		c.done.Store(int64(done))
		c.total.Store(int64(total))
		return e.Err()
	}})
}

// String implements fmt.Stringer.
func (c *comparison) String() string {
	if total := c.total.Load(); total > 0 {
		return fmt.Sprintf("%s: compared %d of %d flows", c.in.name, c.done.Load(), total)
	}
	return c.in.String()
}

// A verdict is a report that says what it did not look at.
type verdict interface {
	WriteText(io.Writer) error
	Incomplete() []string
}

// report prints a report. The command fails if there are findings, and with another status if there
// are none but the report is incomplete.
func (e *env) report(r verdict, asJSON bool, findings int) error {
	write := r.WriteText
	if asJSON {
		write = func(io.Writer) error { return e.json(r) }
	}
	if err := write(e.out); err != nil {
		return err
	}
	switch {
	case findings > 0:
		return errReported
	case len(r.Incomplete()) > 0:
		return &statusError{exitIncomplete, errReported}
	}
	return nil
}

// play replays the file to a live NIC.
func (r *replayCmd) play(e *env) (err error) {
	open, done, err := r.testbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	o := liveplay.Options{Context: e, Fast: r.Fast, Untimed: r.Untimed, Strict: r.Strict}
	if r.Side != "both" {
		o.Side = liveplay.Side(r.Side)
	}
	if r.Output != "" {
		w, err := r.create(e)
		if err != nil {
			return err
		}
		o.Tap = w
		defer func() { err = errors.Join(err, w.Close()) }()
	}
	in, err := e.openCapture(r.File, 1)
	if err != nil {
		return err
	}
	defer in.Close()
	from, err := in.Reader()
	if err != nil {
		return err
	}
	report, err := liveplay.Read(from, open, o)
	if err != nil {
		return err
	}
	report.Link = r.Onto
	return e.report(report, r.JSON, report.Differences())
}

// create begins the recording. If it is standard output, the report goes to standard error.
func (r *replayCmd) create(e *env) (*capture.Writer, error) {
	if r.Output != "-" {
		return capture.Create(r.Output, r.Onto)
	}
	w, err := capture.NewWriter(e.out, r.Onto)
	e.out = e.err
	return w, err
}

// testbed returns the constructor of the testbed, and a function to call at the end.
func (r *replayCmd) testbed() (open func(wire.FrameSink) (testbed.Testbed, error), done func() error, err error) {
	if r.Onto == "fabric" {
		if r.Program != "" {
			return nil, nil, usagef("--program: not used with --onto fabric")
		}
		return testbed.NewSimulated, func() error { return nil }, nil
	}
	if r.Program == "" {
		return nil, nil, usagef("--onto %s needs --program, the command that starts the verbs program on the NIC's host", r.Onto)
	}
	c, err := testbed.OpenLiveLink(r.Onto, strings.Fields(r.Program))
	if errors.Is(err, testbed.ErrLink) {
		return nil, nil, &usageError{err}
	}
	if err != nil {
		return nil, nil, err
	}
	return c.NewTestbed, c.Close, nil
}
