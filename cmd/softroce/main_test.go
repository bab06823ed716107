package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"softroce": func() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// Socket paths have little room: the test's own directory may be too deep.
			dir, err := os.MkdirTemp("", "softroce")
			if err != nil {
				return err
			}
			e.Defer(func() { os.RemoveAll(dir) })
			e.Setenv("SOCK", filepath.Join(dir, "s"))
			fixtures, err := filepath.Abs("../../pcap-fixtures")
			e.Setenv("FIXTURES", fixtures)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"await": await, "isjson": isJSON, "exits": exits},
	})
}

// awaitTime is how long await waits; a loaded machine is slow.
const awaitTime = 20 * time.Second
