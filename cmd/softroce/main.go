// Softroce is an RDMA NIC that is a process: the daemon, and the tools that go with it.
//
// It ends with status 0 when all went well, 1 when what was asked for failed or differs,
// and 2 when the command line is wrong; softroce run, with that of the program that it runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// cli is the command line. A command is a field; what it does is in the file of its name.
type cli struct {
	Socket string `placeholder:"PATH" env:"SOFTROCE_SOCKET" help:"The daemon's socket (default: ${socket})."`

	Run      runCmd      `cmd:"" help:"Run a program that uses libibverbs or librdmacm."`
	Daemon   daemonCmd   `cmd:"" help:"Be the NICs that programs attach to."`
	Perf     perfCmd     `cmd:"" help:"Measure bandwidth, message rate and latency."`
	Pingpong pingpongCmd `cmd:"" help:"Play either end of ibv_rc_pingpong."`
	Show     showCmd     `cmd:"" help:"Show what a running daemon holds."`
	PKeys    pkeysCmd    `cmd:"" name:"pkeys" help:"Change the partitions that a NIC is a member of."`
	Capture  captureCmd  `cmd:"" help:"Record the packets of a running daemon."`
	Decode   decodeCmd   `cmd:"" help:"Print the RoCEv2 packets of a capture file."`
	Replay   replayCmd   `cmd:"" help:"Compare the NICs of a capture file with this one."`
	Check    checkCmd    `cmd:"" help:"Judge the packets of a capture file by the rules of RoCEv2."`
	Scenario scenarioCmd `cmd:"" help:"Play packet-level scenarios."`
	Answer   answerCmd   `cmd:"" help:"Be the verbs program of a live scenario, for the host that plays it."`
	Version  versionCmd  `cmd:"" help:"Print the version."`
	Manual   manualCmd   `cmd:"" hidden:"" help:"Write the manual page."`
}

// env is what a command runs in.
type env struct {
	context.Context
	out, err io.Writer
	socket   string // "": the default
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run carries one command line out and returns the exit status.
func run(args []string, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), terminationSignals()...)
	defer stop()
	var c cli
	exit := -1 // set by --help
	parser := kong.Must(&c,
		kong.Name("softroce"), kong.Description("An RDMA NIC that is a process: RoCEv2 on the wire, verbs over shared memory."),
		kong.Writers(out, errs), kong.Exit(func(status int) { exit = status }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars(defaults()),
	)
	k, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		return usage(errs, err)
	}
	if err := k.Run(&env{ctx, out, errs, c.Socket}); err != nil {
		var u *usageError
		if errors.As(err, &u) {
			return usage(errs, err)
		}
		var s *statusError
		status := exitFailed
		if errors.As(err, &s) {
			status = s.status
		}
		if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			err = errInterrupted
		}
		if !errors.Is(err, errReported) {
			fmt.Fprintf(errs, "softroce: %s\n", oneLine(err))
		}
		return status
	}
	return exitOK
}

// endings are the signals that end a command in good order. What is ignored stays ignored: SIGHUP,
// which comes when the terminal goes, by nohup; SIGINT by a script for what it has in the background.
func terminationSignals() []os.Signal {
	var s []os.Signal
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			s = append(s, sig)
		}
	}
	return s
}

// statusError is an error with an exit status of its own.
type statusError struct {
	status int
	err    error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// errReported fails a command that has already said why.
var errReported = errors.New("reported")

// errInterrupted is all there is to say of a command that a signal ended before its time.
var errInterrupted = errors.New("interrupted")

// usageError is a command line that is wrong in a way that only the command sees.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func usage(errs io.Writer, err error) int {
	fmt.Fprintf(errs, "softroce: %s\nRun \"softroce --help\" for the commands, \"softroce COMMAND --help\" for their flags.\n", oneLine(err))
	return exitUsage
}

// oneLine joins the lines of errors that were joined.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
