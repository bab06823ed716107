package main

import "softroce/internal/check"

type checkCmd struct {
	File string `arg:"" complete:"<files>" help:"A pcap or pcapng file."`
	JSON bool   `name:"json" help:"Print the report as JSON."`
}

// Run exits with status 1 if a packet violates a rule, and 3 if not all could be judged.
func (c *checkCmd) Run(e *env) error {
	report, err := check.File(c.File)
	if report == nil {
		return err
	}
	if reported := e.report(report, c.JSON, report.Total); err == nil {
		err = reported
	}
	return err
}
