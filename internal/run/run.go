package run

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"softroce/verbs"
)

// Options say what to run, and where.
type Options struct {
	Command []string // a name for PATH, or a path, and its arguments
	Device  string   // the NICs that the program sees, separated by commas; "": all
	Quiet   bool     // do not tell what was done

	// Socket is the daemon's; "": the default one (see control.SocketPath), or, where nobody
	// serves on that, one that the user's programs share.
	Socket string

	// What a daemon is to be like that is started for the program. One that runs already is
	// not used where one of these is set.
	NICs    []string // as of softroce daemon --nic
	Fault   string   // file of a fault program
	Capture string   // pcapng file to write

	Stderr io.Writer // for what is told, and for the daemon's log
}

// An Error is a command that was not run, or whose surroundings failed. Status is what a shell
// would return for it.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// standardPath is where execvp looks for commands if nobody says where: confstr(_CS_PATH).
const standardPath = "/bin:/usr/bin"

// Run runs a command on softroce and returns its status: 128+n where signal n ended it. It
// must not be called twice at the same time: a process has one set of signals.
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
	// The program's own failure is the one to tell of.
	defer func() {
		if endErr := d.release(); endErr != nil && err == nil && code == 0 {
			err = fmt.Errorf("daemon: %w", endErr)
		}
	}()
	if err := checkDevices(ctx, d.socket, o.Device); err != nil {
		return 0, err
	}
	env, err := environment(os.Environ(), dir, d.socket, o.Device, p.sanitizer)
	if err != nil {
		return 0, err
	}
	if !o.Quiet {
		fmt.Fprintf(o.Stderr, "softroce run: %s; libraries in %s\n", d, dir)
	}
	argv := append([]string{o.Command[0]}, o.Command[1:]...)
	if p.args != nil {
		argv = append(append([]string{p.path}, p.args...), o.Command[1:]...)
	}
	return execute(ctx, p.path, argv, env)
}

// checkDevices wants each of the NICs to be there.
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

// String tells which daemon it is, in a line's part.
func (d *lease) String() string {
	s := d.description()
	if d.denied != "" {
		s += " (the one on " + d.denied + " denies access to this user)"
	}
	return s
}

func (d *lease) description() string {
	if d.process == nil {
		return "uses the daemon on " + d.socket
	}
	var nics []string
	for _, n := range d.nics {
		name, rest, _ := strings.Cut(n, " on ")
		if fields := strings.Split(rest, ", "); len(fields) > 2 {
			name += " " + fields[2] // state, path MTU, the first address
		}
		nics = append(nics, name)
	}
	return fmt.Sprintf("started a daemon on %s with %s", d.socket, strings.Join(nics, ", "))
}
