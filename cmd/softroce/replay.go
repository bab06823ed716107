package main

import "errors"

type replayCmd struct {
	File   string `arg:"" help:"A pcap or pcapng file."`
	Strict bool   `help:"Compare also what an implementation may choose."`
	JSON   bool   `name:"json" help:"Print the report as JSON."`
}

func (r *replayCmd) Run(e *env) error { return errors.ErrUnsupported }
