package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// rspreload is rdma-core's library that turns the TCP sockets of a program into stream sockets over RDMA.
const rspreload = "/usr/lib/*/rsocket/librspreload.so"

// TestTCPProgramsOverRDMA has netcat, which knows nothing of RDMA, carry a file. There is no TCP/IP between the two: only
// the fabric has their addresses.
func TestTCPProgramsOverRDMA(t *testing.T) {
	needRoot(t, "network namespaces")
	needPrograms(t)
	betweenUs.take(t)
	found, err := filepath.Glob(rspreload)
	if err != nil || len(found) == 0 {
		t.Skipf("there is no %s: scripts/setup test installs librdmacm1", rspreload)
	}
	client, server := onFabric(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	content := make([]byte, 1<<20+5)
	rand.NewChaCha8([32]byte{1}).Read(content)
	if err := os.WriteFile(from, content, 0o644); err != nil {
		t.Fatal(err)
	}
	script := func(name, redirected string) string {
		file := filepath.Join(dir, name)
		text := fmt.Sprintf("#!/bin/sh\nexec env LD_PRELOAD=%s nc.traditional \"$@\" %s\n", found[0], redirected)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	s := server.start(ctx, t, script("server", ">"+to)+" -l -p 9300")
	for n := 0; n == 0 && s.running(); time.Sleep(10 * time.Millisecond) {
		var err error
		if n, err = server.listeners(ctx); err != nil {
			t.Fatal(err)
		}
	}
	c := client.start(ctx, t, script("client", "<"+from)+" -q 1 "+server.addr[false]+" 9300")
	clientText, clientErr := c.wait()
	serverText, serverErr := s.wait()
	if clientErr != nil || serverErr != nil {
		t.Errorf("client: %v %s\nserver: %v %s", clientErr, clientText, serverErr, serverText)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes came of %d, or others (%v)", len(got), len(content), err)
	}
}
