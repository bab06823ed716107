package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
	"softroce/internal/daemon"
)

type captureCmd struct {
	Output string `short:"o" required:"" placeholder:"FILE" help:"The pcapng file to write; - is standard output."`
	Device string `placeholder:"NIC" help:"Record only the packets of this NIC (default: all)."`
}

func (c *captureCmd) Run(e *env) error {
	var progress func(control.CaptureState)
	if isTerminal(os.Stderr) {
		progress = func(s control.CaptureState) { fmt.Fprintf(e.err, "\r%s ", captureSummary(s)) }
	}
	s, err := daemon.Record(e, e.socket, c.Device, c.Output, progress)
	if progress != nil {
		fmt.Fprint(e.err, "\r")
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(e.err, captureSummary(s))
	return nil
}

func captureSummary(s control.CaptureState) string {
	return fmt.Sprintf("%d packets, %d bytes, %d lost", s.Packets, s.Bytes, s.Dropped)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
