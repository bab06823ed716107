package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"softroce/internal/scenario"
	"softroce/internal/testbed"
)

type scenarioCmd struct {
	Files   []string `arg:"" name:"file" complete:"<files>" help:"Scenario files; - is standard input."`
	Verbose bool     `short:"v" help:"Print every command with the packets that followed it."`
	JSON    bool     `name:"json" help:"Print one line of JSON per scenario."`
	Jobs    int      `short:"j" default:"1" help:"Number of scenarios to run at the same time."`
	Peer    string   `placeholder:"LINK" complete:"<links>" help:"Run against a live NIC at the other end of a link: packet:IFACE, udp:IFACE, xdp:IFACE or dgram:…"`
	Program string   `placeholder:"COMMAND" complete:"<programs>" help:"The verbs program on that NIC's host: a command, or tcp:HOST:PORT."`
	IPv6    bool     `name:"ipv6" help:"Use IPv6 addresses."`
	Untimed bool     `help:"Do not fail on packets that arrive too early. For hosts whose clock stops and catches up, such as virtual machines."`
	Lacks   []string `placeholder:"EVENT" help:"Asynchronous events that the live NIC does not generate."`
}

// Run exits with status 1 if a scenario failed, and 3 if all were skipped.
func (s *scenarioCmd) Run(e *env) error {
	o := scenario.Options{Context: e, MissingEvents: s.Lacks, Untimed: s.Untimed}
	if s.Peer == "" {
		o.NewTestbed = testbed.SimulatedOptions{IPv6: s.IPv6}.NewTestbed
	} else {
		c, err := testbed.OpenLiveLink(s.Peer, strings.Fields(s.Program))
		if errors.Is(err, testbed.ErrLink) {
			return &usageError{err}
		}
		if err != nil {
			return err
		}
		defer c.Close()
		if s.IPv6 {
			if err := c.UseIPv6(); err != nil {
				return err
			}
		}
		o.NewTestbed = c.NewTestbed
	}
	for i, f := range s.Files {
		if f == "-" {
			s.Files[i] = "/dev/stdin"
		}
	}
	failed, played := 0, 0
	for r := range scenario.RunAll(s.Files, o, s.Jobs) {
		if e.Err() != nil {
			return e.Err()
		}
		if errors.Is(r.Err, scenario.ErrFailed) {
			failed++
		}
		if !errors.Is(r.Err, scenario.ErrSkipped) {
			played++
		}
		if err := s.print(e, r); err != nil {
			return err
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d scenarios failed", failed, len(s.Files))
	case played == 0:
		return &statusError{exitIncomplete, fmt.Errorf("no scenario was played: %d were skipped", len(s.Files))}
	}
	return nil
}

func (s *scenarioCmd) print(e *env, r *scenario.Result) error {
	if s.JSON {
		return json.NewEncoder(e.out).Encode(r)
	}
	switch {
	case errors.Is(r.Err, scenario.ErrSkipped):
		fmt.Fprintf(e.out, "skip %s: %v\n", r.Name(), r.Err)
	case r.Err != nil:
		fmt.Fprintf(e.out, "FAIL %s\n%s\n", r.Name(), strings.TrimSuffix(r.Log, "\n"))
	default:
		fmt.Fprintf(e.out, "ok   %s: %d packets, %v\n", r.Name(), r.Packets, r.Time)
		if s.Verbose {
			fmt.Fprint(e.out, r.Log)
		}
	}
	return nil
}
