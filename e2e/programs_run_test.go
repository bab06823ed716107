package e2e

import (
	"context"
	"fmt"
	"softroce/e2e/harness"
	"strings"
	"testing"
	"time"
)

// run runs the two programs until both end.
func (r programRun) run(t *testing.T, client, server harness.Endpoint, ipv6 bool) {
	t.Helper()
	defer harness.AcquirePrograms(t)()
	ctx, cancel := context.WithTimeoutCause(t.Context(), harness.ProgramLimit, fmt.Errorf("not done within %v", harness.ProgramLimit))
	defer cancel()
	port := harness.FreePort()
	serverJob := server.Start(ctx, t, r.command(r.family.server, server, server, port, ipv6), r.perftestEnv(t, server, port, "")...)
	listens := port
	if r.family.rdmacm {
		listens++
	}
	if err := server.WaitListening(ctx, serverJob, listens); err != nil {
		cancel()
		out, status := serverJob.Wait()
		t.Fatalf("%s's server: %v, %v\n%s", server.Provider, err, status, out)
	}
	clientJob := client.Start(ctx, t, r.command(r.family.client, client, server, port, ipv6), r.perftestEnv(t, client, port, server.Host)...)
	out, err := clientJob.Wait()
	if err != nil {
		// The server may print why. It does not end by itself for two minutes.
		select {
		case <-serverJob.Done:
		case <-time.After(time.Second):
			cancel()
		}
	}
	served, serverErr := serverJob.Wait()
	if err != nil || serverErr != nil || !r.family.ok.MatchString(out) || errorOutput.MatchString(out+served) {
		t.Errorf("client on %s: %v\n%s\nserver on %s: %v\n%s", client.Provider, err, out, server.Provider, serverErr, served)
	}
}

// expectErrors expects both programs to fail, the server possibly before it listens, and returns
// their output.
func (r programRun) expectErrors(t *testing.T, e harness.Endpoint) string {
	t.Helper()
	defer harness.AcquirePrograms(t)()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	serverJob := e.Start(ctx, t, r.command(r.family.server, e, e, port, false))
	var output string
	switch err := e.WaitListening(ctx, serverJob, port); {
	case err == nil:
		if output, err = e.Start(ctx, t, r.command(r.family.client, e, e, port, false)).Wait(); err == nil {
			t.Errorf("the client succeeded, want an error")
		}
	case serverJob.Running():
		cancel()
		t.Errorf("waiting for the server to listen: %v", err)
	}
	served, err := serverJob.Wait()
	if err == nil || ctx.Err() != nil {
		t.Errorf("the server ended with %v, %v; want an error before the time limit", err, ctx.Err())
	}
	return output + served
}

// command fills in a command line for one of two endpoints.
func (r programRun) command(form string, e, server harness.Endpoint, port int, ipv6 bool) string {
	options := r.options
	if e.Provider == harness.Softroce {
		options += " " + r.softroceOptions
	}
	return strings.NewReplacer("{tool}", r.tool, "{options}", options, "{dev}", e.Device, "{gid}", e.GID[ipv6],
		"{port}", fmt.Sprint(port), "{host}", server.Host, "{addr}", server.Addr[ipv6]).Replace(form)
}

// perftestEnv returns the environment variables for a program of perftest; host is the server's, at
// the client.
func (r programRun) perftestEnv(t *testing.T, e harness.Endpoint, port int, host string) []string {
	t.Helper()
	if !r.family.perftest {
		return nil
	}
	library, err := e.PerftestLibrary()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"LD_PRELOAD=" + library}
	if r.family.rdmacm {
		at := fmt.Sprint(port)
		if host != "" {
			at += "," + host
		}
		env = append(env, "E2E_LISTENWAIT="+at)
	}
	return env
}
