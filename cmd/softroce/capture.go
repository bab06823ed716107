package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
	"softroce/internal/daemon"
)

type captureCmd struct {
	daemonFlags
	Output string `short:"o" required:"" placeholder:"FILE" complete:"<files>" help:"The pcapng file to write; - is standard output."`
	Device string `placeholder:"NIC" complete:"<nics>" help:"Record only the packets of this NIC (default: all)."`
}

func (c *captureCmd) Run(e *env) error {
	found, err := e.find()
	if err != nil {
		return err
	}
	defer found.Close()
	var progress func(control.CaptureState)
	if isTerminal(os.Stderr) {
		progress = func(s control.CaptureState) { fmt.Fprintf(e.err, "\r%s ", captureSummary(s)) }
	}
	s, err := daemon.Record(e, found.Socket, c.Device, c.Output, progress)
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
