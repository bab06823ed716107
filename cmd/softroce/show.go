package main

import (
	"encoding/json"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/show"
)

type showCmd struct {
	Kind string `arg:"" help:"One of ${kinds}."`
	JSON bool   `name:"json" short:"j" help:"Print JSON."`
}

func (s *showCmd) Run(e *env) error {
	if err := show.Check(s.Kind); err != nil {
		return &usageError{err}
	}
	c, err := control.Dial(e, e.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	text, err := c.Snapshot(e)
	if err != nil {
		return err
	}
	var snap daemon.Snapshot
	if err := json.Unmarshal(text, &snap); err != nil {
		return err
	}
	if !s.JSON {
		return show.WriteText(e.out, &snap, s.Kind)
	}
	list, err := show.Select(&snap, s.Kind)
	if err != nil {
		return err
	}
	return e.json(list)
}
