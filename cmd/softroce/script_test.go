package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// await PATH… waits until every file is there: a daemon's socket, what a command in the
// background writes.
func await(ts *testscript.TestScript, neg bool, args []string) {
	end := time.Now().Add(awaitTime)
	for _, path := range args {
		for {
			_, err := os.Stat(ts.MkAbs(path))
			if err == nil != neg {
				break
			}
			if time.Now().After(end) {
				ts.Fatalf("waited %v for %s", awaitTime, path)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// isjson FILE PATH… checks that FILE (stdout, stderr or a path) is JSON and has a value at
// each PATH: keys and indices, joined by dots; PATH=VALUE also compares the value.
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

// exits STATUS COMMAND… runs a command and compares its exit status; what it prints is not
// kept, scripts look at that with exec.
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
