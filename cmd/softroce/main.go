// Softroce is an RDMA NIC in userspace: the daemon and its tools.
//
// softroce run exits with the status of the program that it runs, other commands with those below.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"softroce/internal/control"
)

// Exit statuses.
const (
	exitOK         = 0
	exitFailed     = 1 // also: a comparison found differences
	exitUsage      = 2 // the command line is wrong
	exitIncomplete = 3 // check or replay found nothing, but could not look at all; all scenarios were skipped
)

// cli is the command line. Each command is a field, implemented in the file of its name. The tag
// complete has the values that the shell completes: see candidates.
type cli struct {
	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`

	Run        runCmd          `cmd:"" help:"Run a program that uses libibverbs or librdmacm."`
	Daemon     daemonCmd       `cmd:"" help:"Run the NICs that programs attach to."`
	Perf       perfCmd         `cmd:"" help:"Measure bandwidth, message rate and latency."`
	Pingpong   pingpongCmd     `cmd:"" help:"Run as either end of ibv_rc_pingpong."`
	Show       showCmd         `cmd:"" help:"Show the NICs and objects of a running daemon."`
	Explain    explainCmd      `cmd:"" help:"Say why queue pairs are in error or make no progress."`
	Top        topCmd          `cmd:"" help:"Watch NICs, queue pairs, drops, faults and clients, what is wrong first."`
	Link       linkCmd         `cmd:"" help:"Take the link of a NIC down and up."`
	Fault      faultCmd        `cmd:"" help:"Make packets and verbs of a running daemon fail, and raise events."`
	Counters   countersCmd     `cmd:"" help:"Set a counter of a NIC."`
	Congestion congestionCmd   `cmd:"" help:"Print or set the parameters of a NIC's congestion control."`
	PKeys      pkeysCmd        `cmd:"" name:"pkeys" help:"Set the P_Key table of a NIC."`
	Sysfs      sysfsCmd        `cmd:"" help:"Print where the NICs' files of /sys are."`
	Plugin     devicePluginCmd `cmd:"" name:"device-plugin" help:"Offer the NICs to the pods of a Kubernetes node."`
	Persona    personaCmd      `cmd:"" help:"List the models that a NIC can report to be, or show one."`
	Capture    captureCmd      `cmd:"" help:"Record the packets of a running daemon."`
	Decode     decodeCmd       `cmd:"" help:"Print the RoCE and InfiniBand packets of a capture file."`
	Replay     replayCmd       `cmd:"" help:"Replay a capture file and compare the NICs in it with softroce."`
	Check      checkCmd        `cmd:"" help:"Check the packets of a capture file against the rules of RoCE and InfiniBand."`
	Report     reportCmd       `cmd:"" help:"Write a page that shows a capture file: verdict, connections, every packet."`
	Scenario   scenarioCmd     `cmd:"" help:"Run packet-level test scenarios."`
	Sim        simCmd          `cmd:"" help:"Simulate NICs on a network of switches, under virtual time."`
	Extcap     extcapCmd       `cmd:"" hidden:"" help:"Give Wireshark the packets of the NICs."`
	InstallExt installExtCmd   `cmd:"" name:"install-extcap" help:"Let Wireshark and tshark capture from the NICs."`
	Answer     answerCmd       `cmd:"" help:"Run as the verbs program of a live scenario."`
	Help       helpCmd         `cmd:"" help:"Show the help of a command."`
	Version    versionCmd      `cmd:"" help:"Print the version."`
	Completion completionCmd   `cmd:"" help:"Print the completion of bash, zsh or fish."`
	Complete   completeCmd     `cmd:"" hidden:"" help:"List how a command line may continue."`
	Manual     manualCmd       `cmd:"" hidden:"" help:"Write the manual page."`
}

// env is the environment of a command.
type env struct {
	context.Context
	out, err io.Writer
	socket   string // as named by a flag or the environment; empty: see control.Find
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit status.
func run(args []string, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), terminationSignals()...)
	defer stop()
	var c cli
	exit := -1 // set by --help
	parser := kong.Must(&c,
		kong.Name("softroce"), kong.Description("An RDMA NIC in userspace: RoCEv2 on the wire, verbs over shared memory."),
		kong.Writers(out, errs), kong.Exit(func(status int) { exit = status }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars(defaults()),
	)
	if len(args) == 0 {
		parser.Stdout = errs
		if err := printHelp(parser); err != nil {
			return usage(errs, err)
		}
		return exitUsage
	}
	k, err := parser.Parse(socketAfterCommand(args))
	if exit >= 0 {
		return exit
	}
	if err != nil {
		var p *kong.ParseError
		if errors.As(err, &p) {
			err = unknownCommand(p.Context, err)
		}
		return usage(errs, err)
	}
	if err := emptyFlag(k); err != nil {
		return usage(errs, err)
	}
	e := &env{Context: ctx, out: out, err: errs}
	if c, ok := k.Selected().Target.Addr().Interface().(interface{ namedSocket() string }); ok {
		e.socket = c.namedSocket()
	}
	if err := k.Run(e); err != nil {
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
		if errors.Is(err, control.ErrNoDaemon) && e.socket == "" {
			err = fmt.Errorf("%w; softroce run and softroce daemon start one", err)
		}
		if !errors.Is(err, errReported) {
			fmt.Fprintf(errs, "softroce: %s\n", oneLine(err))
		}
		return status
	}
	return exitOK
}

// socketAfterCommand moves a --socket that precedes the command behind it, where it is a flag of
// the commands that use a daemon.
func socketAfterCommand(args []string) []string {
	n := 1
	if args[0] == "--socket" {
		n = 2
	} else if !strings.HasPrefix(args[0], "--socket=") {
		return args
	}
	if len(args) <= n {
		return args
	}
	return slices.Concat(args[n:n+1], args[:n], args[n+1:])
}

// unknownCommand makes the parser's error for an argument in the place of a command say so. The
// parser adds similar names to it.
func unknownCommand(ctx *kong.Context, err error) error {
	rest, unexpected := strings.CutPrefix(err.Error(), "unexpected argument ")
	if unexpected && ctx.Selected() == nil {
		return errors.New("unknown command " + rest)
	}
	return err
}

// emptyFlag returns an error if a flag has an empty value, such as that of a variable which a
// script has not set. As a default, it would pass unnoticed.
func emptyFlag(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		if p.Flag == nil {
			continue
		}
		if v := reflect.Indirect(p.Flag.Target); v.Kind() == reflect.String && v.Len() == 0 {
			return fmt.Errorf("--%s needs a value", p.Flag.Name)
		}
	}
	return nil
}

// terminationSignals returns the signals that end a command cleanly. Signals that are ignored stay
// ignored: nohup ignores SIGHUP, and a shell script ignores SIGINT for its background jobs.
func terminationSignals() []os.Signal {
	var s []os.Signal
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			s = append(s, sig)
		}
	}
	return s
}

// statusError is an error with a specific exit status.
type statusError struct {
	status int
	err    error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// errReported fails a command that has already printed the reason.
var errReported = errors.New("reported")

// errInterrupted replaces the error of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// usageError is an error of the command line that the command detects, not the parser.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func usage(errs io.Writer, err error) int {
	fmt.Fprintf(errs, "softroce: %s\nRun \"softroce --help\" for the commands, \"softroce COMMAND --help\" for their flags.\n", oneLine(err))
	return exitUsage
}

// oneLine puts joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
