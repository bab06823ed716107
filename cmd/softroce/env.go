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

// defaults returns the variables of the help texts and struct tags.
func defaults() kong.Vars {
	return kong.Vars{
		"socket":   control.SocketPath(""),
		"anyGID":   strconv.Itoa(verbs.AnyGID),
		"perfPort": strconv.Itoa(perf.DefaultPort),
		"kinds":    strings.Join(show.Kinds(), ", "),
	}
}

// socketOption selects the daemon of the --socket flag.
func (e *env) socketOption() verbs.Option { return verbs.WithSocket(e.socket) }

// json writes v as indented JSON.
func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func usagef(format string, a ...any) error {
	return &usageError{fmt.Errorf(format, a...)}
}
