package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// waitFor polls until ok returns true.
func waitFor(ts *testscript.TestScript, what string, ok func() bool) {
	for end := time.Now().Add(awaitTime); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("waited %v for %s", awaitTime, what)
		}
	}
}

// await PATH waits until the file exists: a daemon's socket, or the output of a background command.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await PATH")
	}
	waitFor(ts, args[0], func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil
	})
}

// vanishes PATH waits until the file no longer exists.
func vanishes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: vanishes PATH")
	}
	waitFor(ts, "the end of "+args[0], func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		return os.IsNotExist(err)
	})
}

// recorded FILE waits until a capture has started, that is until the file has a header.
func recorded(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: recorded FILE")
	}
	waitFor(ts, args[0], func() bool {
		st, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil && st.Size() > 0
	})
}

// listening PORT waits until a server listens on a TCP port. It reads /proc/net instead of
// connecting, because some servers accept one client only, and instead of binding, because that
// could conflict with the server.
func listening(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listening PORT")
	}
	port, err := strconv.ParseUint(args[0], 10, 16)
	ts.Check(err)
	const listen = "0A"
	local, state := fmt.Sprintf(":%04X", port), 3 // sl local_address rem_address st
	waitFor(ts, "port "+args[0], func() bool {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(table)
			if err != nil {
				continue // the table does not exist without IPv6
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > state && f[state] == listen && strings.HasSuffix(f[1], local) {
					return true
				}
			}
		}
		return false
	})
}

// head FROM TO copies the first line of a file.
func head(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: head FROM TO")
	}
	line, _, _ := strings.Cut(ts.ReadFile(args[0]), "\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(line), 0o600))
}

// isjson FILE PATH… checks that FILE (stdout, stderr or a path) is JSON and has a value at each
// PATH, which consists of keys and indices separated by dots. PATH=VALUE also compares the value.
func isJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: isjson FILE PATH[=VALUE]…")
	}
	var v any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &v); err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	for _, a := range args[1:] {
		path, want, compare := strings.Cut(a, "=")
		at := v
		for key := range strings.SplitSeq(path, ".") {
			at = child(ts, at, key, path)
		}
		if got, _ := json.Marshal(at); compare && strings.Trim(string(got), `"`) != want {
			ts.Fatalf("%s is %s, want %s", path, got, want)
		}
	}
}

func child(ts *testscript.TestScript, v any, key, path string) any {
	switch v := v.(type) {
	case map[string]any:
		if c, ok := v[key]; ok {
			return c
		}
	case []any:
		if i, err := strconv.Atoi(key); err == nil && i < len(v) {
			return v[i]
		}
	}
	ts.Fatalf("no %q on the way to %s", key, path)
	return nil
}

// exits STATUS COMMAND… runs a command and compares its exit status. It discards the output;
// scripts that check output use exec.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	path, err := exec.LookPath(args[1])
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("exit status %d, want %d: %v\n%s", got, want, err, out)
	}
}

// terminate WORD sends SIGTERM to the background commands with WORD among their arguments.
func terminate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: terminate WORD")
	}
	found := false
	for _, c := range ts.BackgroundCmds() {
		if slices.Contains(c.Args, args[0]) {
			found = true
			ts.Check(c.Process.Signal(syscall.SIGTERM))
		}
	}
	if !found {
		ts.Fatalf("no %s in the background", args[0])
	}
}
