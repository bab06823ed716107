package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/show"
)

type showCmd struct {
	daemonFlags
	Kind  string `arg:"" optional:"" complete:"<kinds>" help:"What to show; without it, the kinds are listed."`
	JSON  bool   `name:"json" help:"Print JSON."`
	All   bool   `short:"a" help:"Also print counters that are 0."`
	Watch bool   `short:"w" help:"Repeat every second, and print by how much counters have changed, until Ctrl-C."`
}

// watchInterval is the time between two repetitions of --watch.
const watchInterval = time.Second

func (s *showCmd) Run(e *env) error {
	if s.Kind == "" {
		return listKinds(e)
	}
	if err := show.Check(s.Kind); err != nil {
		return &usageError{err}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	var before *daemon.Snapshot
	for {
		snap, err := snapshot(e, c.Client)
		if err == nil {
			err = s.print(e, snap, before)
		}
		if s.Watch && e.Err() != nil {
			return nil
		}
		if err != nil || !s.Watch {
			return err
		}
		before = snap
		select {
		case <-e.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func listKinds(e *env) error {
	w := tabwriter.NewWriter(e.out, 0, 8, 2, ' ', 0)
	for _, k := range show.Kinds() {
		fmt.Fprintf(w, "%s\t%s\n", k.Name, k.Help)
	}
	return w.Flush()
}

func snapshot(e *env, c *control.Client) (*daemon.Snapshot, error) {
	text, err := c.Snapshot(e)
	if err != nil {
		return nil, err
	}
	var snap daemon.Snapshot
	return &snap, json.Unmarshal(text, &snap)
}

// print prints a snapshot. With --watch it replaces the one before on a terminal, and otherwise
// follows after an empty line.
func (s *showCmd) print(e *env, snap, before *daemon.Snapshot) error {
	if s.JSON {
		list, err := show.Select(snap, s.Kind)
		if err != nil {
			return err
		}
		return e.json(list)
	}
	var text bytes.Buffer
	switch {
	case s.Watch && isTerminal(os.Stdout):
		text.WriteString(clearScreen)
	case before != nil:
		text.WriteByte('\n')
	}
	if err := show.WriteText(&text, snap, s.Kind, show.Options{All: s.All, Before: before}); err != nil {
		return err
	}
	if text.Len() == 0 && s.Kind == "counters" {
		fmt.Fprintln(e.err, "softroce: all counters are 0; --all prints them")
	}
	_, err := text.WriteTo(e.out)
	return err
}

// clearScreen is the escape sequence that moves the cursor to the first line and clears what
// follows.
const clearScreen = "\x1b[H\x1b[2J"
