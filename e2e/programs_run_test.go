package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// programLimit is for programs that hang, not for slow machines.
const programLimit = 5 * time.Minute

// A run has its ports to itself: what one has left behind is not in the way of the next, and several can go on at once.
var portsTaken atomic.Int32

const (
	firstPort   = 18600
	portsPerRun = 4 // the program's, and those of its turns
)

func freePort() int { return firstPort + portsPerRun*int(portsTaken.Add(1)) }

// buildTurns builds the library that has the client of a program wait until its server listens again.
var buildTurns = sync.OnceValues(func() (string, error) {
	path := filepath.Join(workDir, "turns.so")
	out, err := exec.Command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC",
		"-o", path, "listenwait/listenwait.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("turns.c: %w: %s", err, out)
	}
	return path, nil
})

// run runs the two programs of a row to their end.
func (r row) run(t *testing.T, client, server end, ipv6 bool) {
	t.Helper()
	defer enter(t, programs)()
	ctx, cancel := context.WithTimeoutCause(t.Context(), programLimit, fmt.Errorf("not done within %v", programLimit))
	defer cancel()
	port := freePort()
	serving := server.start(ctx, t, r.command(r.family.server, server, server, port, ipv6), r.turns(t, server, port, "")...)
	listens := port
	if r.family.turns {
		listens++
	}
	if err := server.listening(ctx, serving, listens); err != nil {
		cancel()
		out, status := serving.wait()
		t.Fatalf("%s's server: %v, %v\n%s", server.what, err, status, out)
	}
	asking := client.start(ctx, t, r.command(r.family.client, client, server, port, ipv6), r.turns(t, client, port, server.host)...)
	out, err := asking.wait()
	if err != nil {
		// What its server has to say is worth a moment, and not two minutes.
		select {
		case <-serving.done:
		case <-time.After(time.Second):
			cancel()
		}
	}
	served, serverErr := serving.wait()
	if err != nil || serverErr != nil || !r.family.ok.MatchString(out) || wrong.MatchString(out+served) {
		t.Errorf("client on %s: %v\n%s\nserver on %s: %v\n%s", client.what, err, out, server.what, serverErr, served)
	}
}

// fails wants both programs to end in error, the server perhaps before it listens, and returns what they say.
func (r row) fails(t *testing.T, e end) string {
	t.Helper()
	defer enter(t, programs)()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	port := freePort()
	serving := e.start(ctx, t, r.command(r.family.server, e, e, port, false))
	var said string
	switch err := e.listening(ctx, serving, port); {
	case err == nil:
		if said, err = e.start(ctx, t, r.command(r.family.client, e, e, port, false)).wait(); err == nil {
			t.Errorf("the client ends without an error")
		}
	case serving.running():
		cancel()
		t.Errorf("whether the server listens: %v", err)
	}
	served, err := serving.wait()
	if err == nil || ctx.Err() != nil {
		t.Errorf("the server ends with %v, %v", err, ctx.Err())
	}
	return said + served
}

// command fills a command line in for one of two ends.
func (r row) command(form string, e, server end, port int, ipv6 bool) string {
	options := r.options
	if e.what == "softroce" {
		options += " " + r.ours
	}
	return strings.NewReplacer("{tool}", r.tool, "{options}", options, "{dev}", e.device, "{gid}", e.gid[ipv6],
		"{port}", fmt.Sprint(port), "{host}", server.host, "{addr}", server.addr[ipv6]).Replace(form)
}

// turns is the environment in which an end takes turns; the host is the server's, at the client.
func (r row) turns(t *testing.T, e end, port int, host string) []string {
	t.Helper()
	if !r.family.turns {
		return nil
	}
	library, err := e.turns()
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprint(port)
	if host != "" {
		at += "," + host
	}
	return []string{"LD_PRELOAD=" + library, "E2E_TURNS=" + at}
}
