package main

import (
	"os"

	"softroce/internal/testbed/program"
)

type answerCmd struct {
	daemonFlags
	Device string `short:"d" placeholder:"NAME" complete:"<nics>" help:"The NIC (default: the first)."`
}

// Run executes the commands that arrive on standard input.
func (a *answerCmd) Run(e *env) error {
	nic, err := e.open(a.Device)
	if err != nil {
		return err
	}
	defer nic.Close()
	return program.Serve(e, nic, os.Stdin, e.out)
}
