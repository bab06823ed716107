package main

import "softroce/internal/check"

type checkCmd struct {
	File string `arg:"" complete:"<files>" help:"A pcap, pcapng or ERF file; - is standard input."`
	JSON bool   `name:"json" help:"Print the report as JSON."`
}

// Run exits with status 1 if a packet violates a rule, and 3 if not all could be judged.
func (c *checkCmd) Run(e *env) error {
	in, err := e.openCapture(c.File, 2)
	if err != nil {
		return err
	}
	defer in.Close()
	stop := e.showProgress(in)
	report, err := check.Read(in.Reader)
	stop()
	if report == nil {
		return err
	}
	if reported := e.report(report, c.JSON, report.Total); err == nil {
		err = reported
	}
	return err
}
