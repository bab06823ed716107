package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"softroce/scenario"
)

type scenarioCmd struct {
	Files    []string `arg:"" name:"file" type:"existingfile" help:"Scenarios."`
	Verbose  bool     `short:"v" help:"Print every command with the packets that followed it."`
	Peer     string   `placeholder:"LINK" help:"Play against a live NIC at the other end of a link: packet:IFACE, udp:IFACE or dgram:…"`
	NoEvents bool     `help:"The live NIC need not give asynchronous events."`
	Program  string   `placeholder:"COMMAND" help:"The verbs program on that NIC's host: a command, or tcp:HOST:PORT."`
}

// Run exits with 1 where a scenario failed.
func (s *scenarioCmd) Run(e *env) error {
	o := scenario.Options{Context: e, NoEvents: s.NoEvents}
	if s.Peer != "" {
		var err error
		if o.Bench, err = scenario.Live(s.Peer, strings.Fields(s.Program)); err != nil {
			return &usageError{err}
		}
	}
	failed := 0
	for _, f := range s.Files {
		if e.Err() != nil {
			return e.Err()
		}
		r := scenario.Play(f, o)
		name := strings.TrimSuffix(filepath.Base(f), filepath.Ext(f))
		switch {
		case errors.Is(r.Err, scenario.ErrSkipped):
			fmt.Fprintf(e.out, "skip %s: %v\n", name, r.Err)
		case r.Err != nil:
			failed++
			fmt.Fprintf(e.out, "FAIL %s\n%s\n", name, strings.TrimSuffix(r.Log, "\n"))
		default:
			fmt.Fprintf(e.out, "ok   %s: %d packets, %v\n", name, r.Packets, r.Time)
			if s.Verbose {
				fmt.Fprint(e.out, r.Log)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scenarios failed", failed, len(s.Files))
	}
	return nil
}
