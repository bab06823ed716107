package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"softroce/e2e/harness"
	"strconv"
	"strings"
	"testing"
	"time"
)

// socketsPreload returns rdma-core's library that replaces a program's TCP sockets by sockets over
// RDMA.
func socketsPreload(t *testing.T) string {
	t.Helper()
	const pattern = "/usr/lib/*/rsocket/librspreload.so"
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Skipf("there is no %s: scripts/setup test installs librdmacm1", pattern)
	}
	return found[0]
}

// TestTCPProgramsOverRDMA copies a file with netcat, which does not know RDMA. There is no TCP/IP
// between the endpoints: only the fabric has their addresses.
func TestTCPProgramsOverRDMA(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	preload := socketsPreload(t)
	client, server := harness.FabricPair(t, harness.Judged(t, 1, 20)...)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	content := make([]byte, 1<<20+5)
	rand.NewChaCha8([32]byte{1}).Read(content)
	if err := os.WriteFile(from, content, 0o644); err != nil {
		t.Fatal(err)
	}
	script := func(name, redirected string) string {
		file := filepath.Join(dir, name)
		text := fmt.Sprintf("#!/bin/sh\nexec env LD_PRELOAD=%s nc.traditional \"$@\" %s\n", preload, redirected)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	s := server.Start(ctx, t, script("server", ">"+to)+" -l -p 9300")
	for n := 0; n == 0 && s.Running(); time.Sleep(10 * time.Millisecond) {
		var err error
		if n, err = server.CountListeners(ctx); err != nil {
			t.Fatal(err)
		}
	}
	c := client.Start(ctx, t, script("client", "<"+from)+" -q 1 "+server.Addr[false]+" 9300")
	clientText, clientErr := c.Wait()
	serverText, serverErr := s.Wait()
	if clientErr != nil || serverErr != nil {
		t.Errorf("client: %v %s\nserver: %v %s", clientErr, clientText, serverErr, serverText)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the received file differs: it has %d bytes of %d (%v)", len(got), len(content), err)
	}
}

// TestForkingServerOverRDMA runs a server that forks for each connection. rdma-core's library then
// connects again over RDMA in the child, for which the endpoints need TCP/IP between them.
func TestForkingServerOverRDMA(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	preload := socketsPreload(t)
	const bytesEach = 300000
	program := filepath.Join(t.TempDir(), "forkserver")
	harness.RunCommand(t, "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o", program, "forkserver/forkserver.c")
	ns := harness.Namespace(t, "forkserver")
	socket := harness.DaemonIn(t, ns, harness.Judged(t, 2, 20)...)
	client, server := harness.FabricEndpoints(ns, socket)
	for _, e := range []harness.Endpoint{client, server} {
		harness.RunCommand(t, "ip", "-n", ns, "addr", "add", e.Addr[false]+"/32", "dev", "lo")
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	env := []string{"RDMAV_FORK_SAFE=1", "LD_PRELOAD=" + preload}
	line := func(what string) string { return fmt.Sprintf("%s %s %s %d", program, what, server.Addr[false], port) }
	s := server.Start(ctx, t, line("serve"), env...)
	if err := server.WaitListening(ctx, s, port); err != nil {
		cancel()
		out, _ := s.Wait()
		t.Fatalf("%v\n%s", err, out)
	}
	for range 2 {
		if out, err := client.Start(ctx, t, fmt.Sprintf("%s %d", line("connect"), bytesEach), env...).Wait(); err != nil {
			cancel()
			served, _ := s.Wait()
			t.Fatalf("client: %v %s\nserver: %s", err, out, served)
		}
	}
	if out, err := s.Wait(); err != nil {
		t.Errorf("server: %v %s", err, out)
	}
	// The transfer would succeed over TCP too, so the NIC's counters must show it.
	bin := harness.Binary(t)
	counters := harness.RunCommand(t, bin, "--socket", socket, "show", "counters")
	_, rest, _ := strings.Cut(counters, "link "+client.Device+"/1 port_xmit_bytes ")
	number, _, _ := strings.Cut(rest, "\n")
	if sent, err := strconv.Atoi(number); err != nil || sent < 2*bytesEach {
		t.Errorf("%s has sent %q bytes", client.Device, number)
	}
}
