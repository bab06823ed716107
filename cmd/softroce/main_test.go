package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"softroce/attach/control"
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
			e.Setenv("XDG_RUNTIME_DIR", dir)
			e.Setenv("PORT", freePort())
			fixtures, err := filepath.Abs("../../pcap-fixtures")
			e.Setenv("FIXTURES", fixtures)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": await, "listening": listening, "recorded": recorded, "isjson": isJSON, "exits": exits, "head": head,
			"terminate": terminate, "vanishes": vanishes,
		},
		Condition: func(cond string) (bool, error) {
			if cond != "nodaemon" {
				return false, fmt.Errorf("unknown condition %s", cond)
			}
			_, err := os.Stat(control.DefaultSocket)
			return os.IsNotExist(err), nil
		},
	})
}

// awaitTime is how long await waits; a loaded machine is slow.
const awaitTime = 20 * time.Second

// freePort returns a TCP port that nobody has at the moment.
func freePort() string {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return "18517"
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
