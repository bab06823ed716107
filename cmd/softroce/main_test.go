package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"softroce/internal/control"
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
			// The test's own directory may be too long for a socket path.
			dir, err := os.MkdirTemp("", "softroce")
			if err != nil {
				return err
			}
			e.Defer(func() { os.RemoveAll(dir) })
			e.Setenv("DIR", dir)
			e.Setenv("TMPDIR", dir) // no daemon of this machine is found there
			e.Setenv("SOCK", filepath.Join(dir, "s"))
			for _, name := range []string{"PORT", "PORT2"} {
				port, err := freePort()
				if err != nil {
					return err
				}
				e.Setenv(name, port)
			}
			e.Setenv("XDG_RUNTIME_DIR", dir)
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

// awaitTime bounds every wait of a script; it allows for a loaded machine.
const awaitTime = 20 * time.Second

// freePort returns an unused TCP port outside the ephemeral range, so that the kernel does not
// assign it to another process before the test uses it.
func freePort() (string, error) {
	const from, ports = 20000, 12000
	for range ports {
		p := from + (7*os.Getpid()+int(portsProbed.Add(1)))%ports
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(p)); err == nil {
			return strconv.Itoa(p), l.Close()
		}
	}
	return "", errors.New("no TCP port is free")
}

// portsProbed counts the ports that were probed: scripts run in parallel.
var portsProbed atomic.Int32
