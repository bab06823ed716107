package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"softroce/internal/control"
	"softroce/internal/perf"
	"softroce/verbs"
)

// defaults returns the variables of the help texts and struct tags.
func defaults() kong.Vars {
	return kong.Vars{
		"version":  versionLine(),
		"socket":   control.DefaultSocket,
		"anyGID":   strconv.Itoa(verbs.AnyGID),
		"perfPort": strconv.Itoa(perf.DefaultPort),

		"libraryDir": nodeLibraryDir,
		"kubeletDir": kubeletDir,
	}
}

// daemonFlags are the flags of the commands that use a daemon.
type daemonFlags struct {
	Socket string `placeholder:"PATH" env:"SOFTROCE_SOCKET" complete:"<files>" help:"The daemon's socket (default: ${socket}, or else this user's)."`
}

func (f daemonFlags) namedSocket() string { return f.Socket }

// find connects to the daemon of the command. If no socket is named, and other daemons run or deny
// access, it says on standard error which one it uses.
func (e *env) find() (*control.Found, error) {
	f, err := control.Find(e, e.socket)
	if e.socket != "" {
		return f, err
	}
	if errors.Is(err, control.ErrNoDaemon) {
		if others := control.Others(""); len(others) > 0 {
			err = fmt.Errorf("%w; there are others, which --socket selects: %s", err, strings.Join(others, ", "))
		}
	}
	if err != nil {
		return nil, err
	}
	for _, s := range f.Denied {
		fmt.Fprintf(e.err, "softroce: the daemon on %s denies access to this user\n", s)
	}
	others := control.Others(f.Socket)
	if len(others) > 0 {
		fmt.Fprintf(e.err, "softroce: uses the daemon on %s; --socket selects another: %s\n", f.Socket, strings.Join(others, ", "))
	} else if len(f.Denied) > 0 {
		fmt.Fprintf(e.err, "softroce: uses the daemon on %s\n", f.Socket)
	}
	return f, nil
}

// open opens a NIC of the daemon of the command.
func (e *env) open(device string) (*verbs.Context, error) {
	f, err := e.find()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return verbs.Open(e, device, verbs.WithSocket(f.Socket))
}

// json writes v as indented JSON.
func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func usagef(format string, a ...any) error {
	return &usageError{fmt.Errorf(format, a...)}
}
