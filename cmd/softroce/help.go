package main

import "github.com/alecthomas/kong"

type helpCmd struct {
	Command string `arg:"" optional:"" complete:"<commands>" help:"The command; without it, all are listed."`
}

func (h *helpCmd) Run(k *kong.Context) error {
	if h.Command == "" {
		return printHelp(k.Kong)
	}
	return printHelp(k.Kong, h.Command)
}

// printHelp prints the help of a command, or without one that of the program.
func printHelp(k *kong.Kong, command ...string) error {
	ctx, err := kong.Trace(k, command)
	if err != nil {
		return err
	}
	if ctx.Error != nil {
		return &usageError{unknownCommand(ctx, ctx.Error)}
	}
	return ctx.PrintUsage(false)
}
