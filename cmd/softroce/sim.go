package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"softroce/internal/netsim"
)

type simCmd struct {
	Topology string   `arg:"" name:"topology" complete:"<files>" help:"The network: a YAML file."`
	Workload string   `arg:"" name:"workload" complete:"<files>" help:"What the NICs send: a YAML file."`
	Seed     uint64   `default:"1" help:"Seed of everything that is random. The same seed gives the same result."`
	Capture  []string `sep:"none" placeholder:"PORT=FILE" help:"Write the packets of a port to a pcapng file. May be repeated."`
	Flows    bool     `help:"Print a line for each flow, too."`
	JSON     bool     `name:"json" help:"Print the result as JSON."`
}

// Run exits with status 1 if the network has come to a deadlock. The result until then is printed.
func (s *simCmd) Run(e *env) error {
	o := netsim.Options{Seed: s.Seed, Progress: netsim.NewProgress()}
	for _, c := range s.Capture {
		port, file, ok := strings.Cut(c, "=")
		if !ok || port == "" || file == "" {
			return &usageError{fmt.Errorf("--capture %q: want PORT=FILE, such as n0=n0.pcapng", c)}
		}
		o.Captures = append(o.Captures, netsim.Capture{Port: port, File: file})
	}
	t, err := netsim.LoadTopology(s.Topology)
	if err != nil {
		return err
	}
	w, err := netsim.LoadWorkload(s.Workload)
	if err != nil {
		return err
	}
	stop := e.showProgress(o.Progress)
	start := time.Now()
	r, err := netsim.Run(e, t, w, o)
	took := time.Since(start)
	stop()
	if err != nil && !errors.Is(err, netsim.ErrDeadlock) {
		return err
	}
	if s.JSON {
		enc := json.NewEncoder(e.out)
		enc.SetIndent("", "  ")
		if printed := enc.Encode(r); printed != nil {
			return printed
		}
		return err
	}
	if printed := r.Print(e.out, s.Flows); printed != nil {
		return printed
	}
	fmt.Fprintf(e.err, "%v simulated in %v: %.2f million packet hops a second\n", time.Duration(r.Time).Round(time.Microsecond), took.Round(time.Millisecond), float64(r.Hops)/1e6/took.Seconds())
	return err
}
