package main

import (
	"bufio"
	"errors"
	"fmt"

	"softroce/capture"
	"softroce/internal/conversation"
)

type decodeCmd struct {
	File   string   `arg:"" complete:"<files>" help:"A pcap, pcapng or ERF file; - is standard input."`
	JSON   bool     `name:"json" help:"Print a JSON object on each line."`
	Short  bool     `help:"Print short lines: what distinguishes packets, and what is unusual."`
	Filter []string `sep:"none" placeholder:"CONDITIONS" help:"Print only the packets that meet the conditions of a fault rule, such as 'qp 0x11 kind nak'. May be repeated, for packets that meet any of several filters."`
	All    bool     `short:"a" help:"Also print frames of other protocols."`
}

func (d *decodeCmd) Run(e *env) error {
	o := capture.DecodeOptions{JSON: d.JSON, Short: d.Short, All: d.All, Remark: conversation.NewRemarks().On}
	if d.Short && d.JSON {
		return usagef("--short and --json exclude each other")
	}
	var err error
	if o.Filter, err = parseFilter(d.Filter); err != nil {
		return err
	}
	in, err := e.openCapture(d.File, 1)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := in.Reader()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(e.out)
	sum, err := capture.Decode(out, r, o)
	if err := errors.Join(err, out.Flush()); err != nil && e.Err() == nil {
		return err
	}
	if !d.JSON {
		fmt.Fprintln(e.err, sum)
	}
	return e.Err()
}

// parseFilter returns the filter of --filter, nil without one.
func parseFilter(rules []string) (capture.Match, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	f, err := capture.ParseFilter(rules...)
	if err != nil {
		return nil, usagef("--filter: %w", err)
	}
	return f, nil
}
