package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// TestSocketsOverRDMASanitized has the programs for sockets over RDMA talk through libraries that look for their own mistakes.
func TestSocketsOverRDMASanitized(t *testing.T) {
	needRoot(t, "network namespaces")
	needPrograms(t)
	betweenUs.take(t)
	dir, runtime := sanitized(t)
	// rcopy frees not all of its own.
	env := fmt.Sprintf("env LD_LIBRARY_PATH=%s LD_PRELOAD=%s ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 ", dir, runtime)
	with := func(e end) end {
		start := e.start
		e.start = func(ctx context.Context, t *testing.T, line string, more ...string) *job {
			return start(ctx, t, env+line, more...)
		}
		return e
	}
	var list []cmTalk
	for _, c := range conversations {
		tool, _, _ := strings.Cut(c.server, " ")
		if tool == "rstream" || tool == "riostream" || tool == "rcopy" || tool == "udpong" {
			list = append(list, c)
		}
	}
	if len(list) < 8 {
		t.Fatalf("%d conversations of sockets are little", len(list))
	}
	a, b := onFabric(t)
	t.Run("fabric", func(t *testing.T) { converse(t, with(a), with(b), list) })
	x, y := onVeth(t)
	var datagrams []cmTalk // which go through UDP first here
	for _, c := range list {
		if strings.HasPrefix(c.name, "udpong") {
			datagrams = append(datagrams, c)
		}
	}
	t.Run("veth", func(t *testing.T) { converse(t, with(x), with(y), datagrams) })
}
