package main

import (
	"bufio"
	"errors"
	"fmt"

	"softroce/capture"
)

type decodeCmd struct {
	File string `arg:"" complete:"<files>" help:"A pcap or pcapng file."`
	JSON bool   `name:"json" help:"Print a JSON object on each line."`
	All  bool   `short:"a" help:"Also print frames of other protocols."`
}

func (d *decodeCmd) Run(e *env) error {
	r, err := capture.Open(d.File)
	if err != nil {
		return err
	}
	defer r.Close()
	out := bufio.NewWriter(e.out)
	sum, err := capture.Decode(out, r, capture.DecodeOptions{JSON: d.JSON, All: d.All})
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if !d.JSON {
		fmt.Fprintln(e.err, sum)
	}
	return nil
}
