package main

import "softroce/capture/replay"

type replayCmd struct {
	File   string `arg:"" help:"A pcap or pcapng file."`
	Strict bool   `help:"Compare also what an implementation may choose."`
	JSON   bool   `name:"json" help:"Print the report as JSON."`
}

// Run exits with 1 where the replay found a difference.
func (r *replayCmd) Run(e *env) error {
	report, err := replay.File(r.File, replay.Options{Strict: r.Strict})
	if err != nil {
		return err
	}
	if r.JSON {
		err = e.json(report)
	} else {
		err = report.WriteText(e.out)
	}
	if err == nil && report.Differences() > 0 {
		err = errReported
	}
	return err
}
