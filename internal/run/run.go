package run

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/nicspec"
	"softroce/verbs"
)

// Options describe the program to run and its daemon.
type Options struct {
	Command []string // a path, or a name to look up in PATH, and the arguments
	Device  string   // the NICs that the program sees, separated by commas; "": all
	Memory  string   // the value of MemoryEnv
	Quiet   bool     // do not print which daemon and libraries are used

	// Socket is the daemon's socket. If empty, the daemon is the one that control.Find finds, or,
	// if there is none, a new one that the user's programs share.
	Socket string

	// The configuration of the daemon to start. If any of these is set, a running daemon is not
	// used.
	NICs  []nicspec.NIC
	Fault string // file that holds a fault program; "-" is standard input

	// Capture says what to record, and where: see daemon.ParseCapture. If that is "-", the output
	// of the program goes to standard error.
	Capture string

	// CaptureBlocking lets the NICs wait for the file of the capture. Without it, a slow file loses
	// packets.
	CaptureBlocking bool

	Stderr io.Writer // receives messages and the daemon's log

	// Explain, if not nil, returns why a queue pair of a program that has failed did, or an empty
	// string. It is not called with Quiet.
	Explain func(context.Context, Ended) string
}

// Ended is a program that has ended.
type Ended struct {
	PID     int
	Daemon  *control.Client // connected since before the program was started
	Private bool            // no other program uses the daemon
}

// An Error is returned if the command could not run, or if the daemon failed. Status is the status
// that a shell would return.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// standardPath is the search path of execvp if PATH is not set: confstr(_CS_PATH).
const standardPath = "/bin:/usr/bin"

// Run runs a command on softroce and returns its status, or 128+n if signal n ended it. It must not
// be called concurrently, because signal handling is per process.
func Run(ctx context.Context, o Options) (int, error) {
	path, ok := os.LookupEnv("PATH")
	if !ok {
		path = standardPath
	}
	p, err := find(o.Command[0], path)
	if err != nil {
		return 0, &Error{shellStatus(err), err}
	}
	code, err := o.run(ctx, p)
	if err != nil {
		return 0, &Error{shellStatus(err), err}
	}
	return code, nil
}

func (o *Options) run(ctx context.Context, p program) (code int, err error) {
	dir, removeLibraries, err := libraries()
	if err != nil {
		return 0, err
	}
	defer removeLibraries()
	d, err := o.acquire(ctx)
	if err != nil {
		return 0, err
	}
	captureFile, _ := daemon.SplitCapture(o.Capture)
	// A failure of the program takes precedence over one of the daemon.
	defer func() {
		recorded, endErr := d.release()
		if endErr != nil && err == nil && code == 0 {
			err = fmt.Errorf("the program succeeded, but its daemon failed: %w", endErr)
		}
		if recorded != "" && !o.Quiet {
			fmt.Fprintf(o.Stderr, "softroce run: capture %s: %s\n", captureFile, recorded)
		}
	}()
	if err := checkDevices(ctx, d.socket, o.Device); err != nil {
		return 0, err
	}
	env, err := environment(os.Environ(), dir, d.socket, o.Device, o.Memory, p.sanitizer)
	if err != nil {
		return 0, err
	}
	if !o.Quiet {
		fmt.Fprintf(o.Stderr, "softroce run: %s; libraries in %s\n", d, dir)
		for _, n := range d.notes {
			fmt.Fprintf(o.Stderr, "softroce run: %s\n", n)
		}
	}
	argv := append([]string{o.Command[0]}, o.Command[1:]...)
	if p.args != nil {
		argv = append(append([]string{p.path}, p.args...), o.Command[1:]...)
	}
	stdout := os.Stdout
	if captureFile == "-" {
		stdout = os.Stderr
	}
	pid, code, err := execute(ctx, p.path, argv, env, stdout)
	if err == nil && code != 0 && !o.Quiet && o.Explain != nil {
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), explainTime)
		defer stop()
		if why := o.Explain(limited, Ended{pid, d.conn, d.private}); why != "" {
			fmt.Fprintf(o.Stderr, "softroce run: %s\n", why)
		}
	}
	return code, err
}

// explainTime bounds how long the daemon may take to say why a program has failed.
const explainTime = 2 * time.Second

// checkDevices returns an error if the daemon lacks one of the NICs.
func checkDevices(ctx context.Context, socket, names string) error {
	if names == "" {
		return nil
	}
	nics, err := verbs.Devices(ctx, verbs.WithSocket(socket))
	if err != nil {
		return err
	}
	var have []string
	for _, n := range nics {
		have = append(have, n.Name)
	}
	for name := range strings.SplitSeq(names, ",") {
		if !slices.Contains(have, name) {
			return fmt.Errorf("no NIC %q (have: %s)", name, strings.Join(have, ", "))
		}
	}
	return nil
}

// String describes the daemon in use.
func (d *lease) String() string {
	if d.process == nil {
		return "uses the daemon on " + d.socket
	}
	var nics []string
	for _, n := range d.nics {
		name, rest, _ := strings.Cut(n, " on ")
		if fields := strings.Split(rest, ", "); len(fields) > 2 {
			name += " " + fields[2] // the fields are: state, path MTU, first address
		}
		nics = append(nics, name)
	}
	return fmt.Sprintf("started a daemon on %s with %s", d.socket, strings.Join(nics, ", "))
}
