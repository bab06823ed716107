package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"softroce/internal/control"
)

// DeviceEnv is the environment variable that names the NICs that a program sees, separated by
// commas, in this order. Without it, it sees all that the daemon has.
const DeviceEnv = "SOFTROCE_DEVICE"

// environment is what a program gets: what we have, so that our libraries are found first and
// find the daemon.
func environment(inherited []string, dir, socket, device, sanitizer string) ([]string, error) {
	if strings.ContainsAny(dir, ":;") {
		return nil, fmt.Errorf("%w: LD_LIBRARY_PATH cannot contain the directory %q, because of the %q in its name",
			ErrNoLibraries, dir, dir[strings.IndexAny(dir, ":;")])
	}
	env := set(inherited, "LD_LIBRARY_PATH", joinNonEmpty(":", dir, lookup(inherited, "LD_LIBRARY_PATH")))
	// What else is to be preloaded keeps its place before ours: it may want to be the first.
	env = set(env, "LD_PRELOAD", joinNonEmpty(":", sanitizer, lookup(inherited, "LD_PRELOAD"), preload(dir)))
	env = set(env, control.SocketEnv, socket)
	if device != "" {
		env = set(env, DeviceEnv, device)
	}
	return env, nil
}

// preload lists the libraries. They are preloaded although LD_LIBRARY_PATH has them, because
// a program may have been linked with a path of its own to the others (DT_RPATH).
func preload(dir string) string {
	var list []string
	for _, name := range sonames {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if strings.Contains(file, " ") {
			file = name // LD_PRELOAD ends a name at a space; LD_LIBRARY_PATH does not
		}
		list = append(list, file)
	}
	return strings.Join(list, ":")
}

// joined joins what is not empty.
func joinNonEmpty(sep string, parts ...string) string {
	var list []string
	for _, p := range parts {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, sep)
}

// lookup returns the value of a variable, "" if there is none.
func lookup(env []string, key string) (value string) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, key+"="); ok {
			value = v
		}
	}
	return value
}

// set returns env with the variable set, once.
func set(env []string, key, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, key+"=") {
			out = append(out, e)
		}
	}
	return append(out, key+"="+value)
}
