package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"softroce/internal/daemon"
	"softroce/internal/report"
)

type reportCmd struct {
	File   string `arg:"" complete:"<files>" help:"A pcap, pcapng or ERF file; - is standard input."`
	Output string `short:"o" default:"report.html" placeholder:"FILE" complete:"<files>" help:"The page to write (default: report.html); - is standard output."`
}

// Run writes the page also if the capture breaks rules, or ends too early: then it returns why.
func (c *reportCmd) Run(e *env) error {
	in, err := e.openCapture(c.File, report.Passes)
	if err != nil {
		return err
	}
	defer in.Close()
	stop := e.showProgress(in)
	r, readErr := report.Read(in.Reader)
	stop()
	if r == nil {
		return readErr
	}
	n, err := c.write(e, in, r)
	if err != nil {
		return errors.Join(err, readErr)
	}
	fmt.Fprintf(e.err, "%s: %.1f MiB; %s\n", c.Output, float64(n)/(1<<20), r.Check.Verdict)
	return readErr
}

// write writes the page and returns its length.
func (c *reportCmd) write(e *env, in *input, r *report.Report) (int64, error) {
	if c.Output == "-" {
		w := counted{to: e.out}
		err := r.WriteHTML(&w)
		return w.n, err
	}
	if to, err := os.Stat(c.Output); err == nil {
		if from, err := in.file.Stat(); err == nil && os.SameFile(from, to) {
			return 0, usagef("-o %s is the capture itself", c.Output)
		}
	}
	var n int64
	err := daemon.Replace(c.Output, func(to io.Writer) error {
		w := counted{to: to}
		err := r.WriteHTML(&w)
		n = w.n
		return err
	})
	return n, err
}

// counted counts what is written to it.
type counted struct {
	to io.Writer
	n  int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}
