package main

import (
	"errors"

	"softroce/internal/daemon"
	programs "softroce/internal/run"
)

type runCmd struct {
	daemonFlags
	NIC     []string `name:"nic" sep:"none" placeholder:"NAME=LINK" complete:"<nic=link>" help:"Start a daemon with this NIC, as softroce daemon --nic does. May be repeated."`
	Fault   string   `placeholder:"FILE" complete:"<files>" help:"Start a daemon that applies the fault program in FILE to packets."`
	Capture string   `placeholder:"FILE[,OPTION=VALUE…]" complete:"<files>" help:"Start a daemon that records packets to a pcapng file: all, or those that the options select, which are the flags of softroce capture, such as count=100."`
	Block   bool     `name:"capture-blocking" help:"If the file of the capture is slow, let the NICs wait for it instead of losing packets of the capture."`
	Device  string   `placeholder:"NIC,…" complete:"<nics,>" help:"The NICs that the program sees, in this order (default: all NICs of the daemon)."`
	Memory  string   `enum:"auto,shared,process" default:"auto" help:"How the NIC accesses registered memory: shared with the program where that is safe (auto), only so (shared: other registrations fail), or in its process."`
	Quiet   bool     `short:"q" help:"Do not print which daemon and libraries are used."`

	Command []string `arg:"" optional:"" passthrough:"" name:"command" complete:"<programs>" help:"The program and its arguments, after --."`
}

// Run exits with the program's status.
func (r *runCmd) Run(e *env) error {
	command := r.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return usagef("run needs a command, after --")
	}
	nics, err := parseNICs(r.NIC)
	if err != nil {
		return err
	}
	if r.Capture != "" {
		if _, err := daemon.ParseCapture(r.Capture); err != nil {
			return &usageError{err}
		}
	}
	if r.Block && r.Capture == "" {
		return errBlockingAlone
	}
	code, err := programs.Run(e, programs.Options{
		Command: command, Device: r.Device, Memory: r.Memory, Quiet: r.Quiet, Socket: e.socket,
		NICs: nics, Fault: r.Fault, Capture: r.Capture, CaptureBlocking: r.Block, Stderr: e.err,
		Explain: explainProgram,
	})
	var failed *programs.Error
	if errors.As(err, &failed) {
		return &statusError{failed.Status, err}
	}
	if code != 0 {
		return &statusError{code, errReported}
	}
	return nil
}
