package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"softroce/internal/daemon"
	"softroce/internal/netsim"
)

type simCmd struct {
	Topology string   `arg:"" name:"topology" complete:"<files>" help:"The network: a YAML file."`
	Workload string   `arg:"" name:"workload" complete:"<files>" help:"What the NICs send: a YAML file."`
	Seed     uint64   `default:"1" help:"Seed of everything that is random. The same seed gives the same result."`
	Capture  []string `sep:"none" placeholder:"PORT=FILE" help:"Write the packets of a port to a pcapng file. May be repeated."`
	Output   []string `short:"o" sep:"none" placeholder:"FILE" complete:"<files>" help:"Write a page to FILE.html, the result to FILE.json, or its series over time to FILE.csv. May be repeated."`
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
	for _, name := range s.Output {
		if writers[filepath.Ext(name)] == nil {
			return usagef("-o %s: want the extension .html, .json or .csv", name)
		}
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
	title := filepath.Base(s.Workload) + " on " + filepath.Base(s.Topology)
	for _, name := range s.Output {
		write := writers[filepath.Ext(name)]
		if written := daemon.Replace(name, func(to io.Writer) error { return write(r, to, title) }); written != nil {
			return errors.Join(written, err)
		}
	}
	if s.JSON {
		return errors.Join(writeJSON(r, e.out), err)
	}
	if printed := r.Print(e.out, s.Flows); printed != nil {
		return printed
	}
	fmt.Fprintf(e.err, "%v simulated in %v: %.2f million packet hops a second\n", time.Duration(r.Time).Round(time.Microsecond), took.Round(time.Millisecond), float64(r.Hops)/1e6/took.Seconds())
	return err
}

// writers write a result to files, by their extensions.
var writers = map[string]func(r *netsim.Result, to io.Writer, title string) error{
	".csv":  func(r *netsim.Result, to io.Writer, _ string) error { return r.Series.WriteCSV(to) },
	".html": (*netsim.Result).WriteHTML,
	".json": func(r *netsim.Result, to io.Writer, _ string) error { return writeJSON(r, to) },
}

func writeJSON(r *netsim.Result, to io.Writer) error {
	enc := json.NewEncoder(to)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
