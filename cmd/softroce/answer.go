package main

import (
	"os"

	"softroce/internal/testbed/program"
	"softroce/verbs"
)

type answerCmd struct {
	Device string `short:"d" placeholder:"NAME" help:"The NIC (default: the first)."`
}

// Run executes the commands that arrive on standard input.
func (a *answerCmd) Run(e *env) error {
	nic, err := verbs.Open(e, a.Device, e.socketOption())
	if err != nil {
		return err
	}
	defer nic.Close()
	return program.Serve(e, nic, os.Stdin, e.out)
}
