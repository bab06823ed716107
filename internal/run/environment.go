package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"softroce/internal/control"
)

// DeviceEnv is the environment variable that lists the NICs that a program sees, separated by
// commas, in order. Without it, the program sees all NICs of the daemon.
const DeviceEnv = "SOFTROCE_DEVICE"

// MemoryEnv is the environment variable that says how the NIC accesses the memory that a program
// registers: "auto" shares what can be shared safely, "shared" refuses all else, and "process"
// shares nothing.
const MemoryEnv = "SOFTROCE_MEMORY"

// environment returns the environment of the program: the inherited one, extended so that the
// dynamic linker finds our libraries first and these find the daemon.
func environment(inherited []string, dir, socket, device, memory, sanitizer string) ([]string, error) {
	if strings.ContainsAny(dir, ":;") {
		return nil, fmt.Errorf("%w: LD_LIBRARY_PATH cannot contain the directory %q, because of the %q in its name",
			ErrNoLibraries, dir, dir[strings.IndexAny(dir, ":;")])
	}
	env := set(inherited, "LD_LIBRARY_PATH", joinNonEmpty(":", dir, lookup(inherited, "LD_LIBRARY_PATH")))
	// Other preloaded libraries stay before ours: some must be first.
	env = set(env, "LD_PRELOAD", joinNonEmpty(":", sanitizer, lookup(inherited, "LD_PRELOAD"), preload(dir)))
	env = set(env, control.SocketEnv, socket)
	if memory != "" {
		env = set(env, MemoryEnv, memory)
	}
	if device != "" {
		env = set(env, DeviceEnv, device)
	}
	return env, nil
}

// preload lists the libraries. They are preloaded although LD_LIBRARY_PATH contains them, because a
// program may have a DT_RPATH, which takes precedence.
func preload(dir string) string {
	var list []string
	for _, name := range sonames {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if strings.Contains(file, " ") {
			file = name // LD_PRELOAD separates names at spaces, LD_LIBRARY_PATH does not
		}
		list = append(list, file)
	}
	return strings.Join(list, ":")
}

// joinNonEmpty joins the parts that are not empty.
func joinNonEmpty(sep string, parts ...string) string {
	var list []string
	for _, p := range parts {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, sep)
}

// lookup returns the value of a variable, or an empty string.
func lookup(env []string, key string) (value string) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, key+"="); ok {
			value = v
		}
	}
	return value
}

// set returns env with exactly one definition of the variable.
func set(env []string, key, value string) []string {
	out := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, key+"=") {
			out = append(out, e)
		}
	}
	return append(out, key+"="+value)
}
