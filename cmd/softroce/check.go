package main

import (
	"errors"
	"io"

	"softroce/internal/check"
)

type checkCmd struct {
	File string `arg:"" complete:"<files>" help:"A pcap or pcapng file."`
	JSON bool   `name:"json" help:"Print the report as JSON."`
}

// Run exits with status 1 if a packet violates a rule.
func (c *checkCmd) Run(e *env) error {
	report, err := check.File(c.File)
	if report == nil {
		return err
	}
	write := report.WriteText
	if c.JSON {
		write = func(io.Writer) error { return e.json(report) }
	}
	if err := errors.Join(err, write(e.out)); err != nil {
		return err
	}
	if report.Total > 0 {
		return errReported
	}
	return nil
}
