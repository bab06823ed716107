package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"softroce/internal/control"
	"softroce/internal/perf"
	"softroce/internal/show"
	"softroce/verbs"
)

// defaults are what the help and the tags above name.
func defaults() kong.Vars {
	return kong.Vars{
		"socket":   control.SocketPath(""),
		"anyGID":   strconv.Itoa(verbs.AnyGID),
		"perfPort": strconv.Itoa(perf.DefaultPort),
		"kinds":    strings.Join(show.Kinds(), ", "),
	}
}

// daemon says where the daemon is.
func (e *env) socketOption() verbs.Option { return verbs.WithSocket(e.socket) }

// json writes v, indented, for programs and people.
func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func usagef(format string, a ...any) error {
	return &usageError{fmt.Errorf(format, a...)}
}
