package program

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"softroce/verbs/verbstest"
)

// serveLines passes lines to Serve and returns the replies.
func serveLines(t *testing.T, lines ...string) []string {
	t.Helper()
	nic, _ := verbstest.Pair(t)
	var out bytes.Buffer
	if err := Serve(t.Context(), nic, strings.NewReader(strings.Join(lines, "\n")+"\n"), &out); err != nil {
		t.Fatal(err)
	}
	replies := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(replies) != len(lines) {
		t.Fatalf("%d replies to %d lines: %q", len(replies), len(lines), replies)
	}
	return replies
}

func TestQueuePairLifecycle(t *testing.T) {
	const mask = "0x39" // state, P_Key index, port, access
	got := serveLines(t,
		"hello 192.0.2.9",
		"mr m 64 46 7 - -", "write m 3 68656c6c6f", "read m 2 7",
		"cq c 4", "qp a 2 c - - 0 0 0 -", "state a",
		"modify a "+mask+" 1 1024 0 0 0 0 2 0 0 0 0 0 0 0 192.0.2.9 0 64 0 0", "state a", "query a",
		"recv a 5 0", "modify a 1 6 1024 0 0 0 0 0 0 0 0 0 0 0 0 192.0.2.9 0 64 0 0", "poll", "poll", "event", "notice",
		"reset", "state a",
	)
	address, _, _ := strings.Cut(strings.TrimPrefix(got[0], "ok "), " ")
	if a, err := netip.ParseAddr(address); err != nil || !a.Is4() {
		t.Errorf("hello: %q", got[0])
	}
	want := map[int]string{2: "ok", 3: "ok 2e68656c6c6f2e", 4: "ok", 6: "ok 0", 7: "ok", 8: "ok 1", 10: "ok", 11: "ok", 13: "ok",
		14: "ok", 15: "ok", 16: "ok", 17: "error no object a"}
	for i, w := range want {
		if got[i] != w {
			t.Errorf("reply %d: %q, want %q", i, got[i], w)
		}
	}
	if !strings.HasPrefix(got[9], "ok 1 ") || !strings.HasPrefix(got[12], "ok a 5 5 ") {
		t.Errorf("query: %q; poll: %q", got[9], got[12])
	}
}

// TestGIDOfEachVersion connects with the GID of RoCE v1 that gid finds, and with no other index.
func TestGIDOfEachVersion(t *testing.T) {
	const init, rtr = "modify a 0x39 1 1024 0 0 0 0 2 0 0 0 0 0 0 0 192.0.2.9 0 64 0 0", "modify a 0x129181 2 1024 0 0 0 7 0 0 1 12 0 0 0 0 192.0.2.9 0 64 0 0 "
	got := serveLines(t, "gid 2", "hello 192.0.2.9", "gid 1", "gid 2", "gid 3", "qp a 2 - - - 0 0 0 -", init, rtr+"200", rtr+"33")
	v2, ok := strings.CutPrefix(got[3], "ok ")
	if !ok || !strings.HasSuffix(got[1], " "+v2) || got[2] != "ok 33" || v2 != "1" {
		t.Errorf("hello: %q, gid: %q", got[1], got[2:4])
	}
	for _, i := range []int{0, 4, 7} {
		if !strings.HasPrefix(got[i], "error ") {
			t.Errorf("reply %d: %q", i, got[i])
		}
	}
	if got[8] != "ok" {
		t.Errorf("modify with a GID of RoCE v1: %q", got[8])
	}
}

// TestInvalidRequestsAreRejected checks that each invalid line gets an error reply.
func TestInvalidRequestsAreRejected(t *testing.T) {
	lines := []string{
		"fly", "hello moon", "mr", "mr m 18446744073709551615 0 7 - -", "mr m 8 0 7 - -", "mr n 9 0 7 - m", "read m 8 1", "read m 18446744073709551615 1",
		"write m 7 0000", "write m 0 x", "dereg n", "qp a 77 - - - 0 0 0 -", "qp a 10 - - - 0 0 0 nowhere", "modify a 1 1", "destroy a", "send a", "recv a",
		"bind a 1 0 w m 0 8 0 0", "arm c 0", "resize c 5", "limit s 5", "attach a 239.1.1.1", "free w", "mw w 9 -",
	}
	for i, reply := range serveLines(t, lines...) {
		if lines[i] == "mr m 8 0 7 - -" {
			continue // valid: for the lines after it
		}
		if !strings.HasPrefix(reply, "error ") {
			t.Errorf("%q: %q", lines[i], reply)
		}
	}
}

func TestInvalidWorkRequestsAreRejected(t *testing.T) {
	got := serveLines(t, "qp a 2 - - - 0 0 0 -", "send a 1 0 0 0 0 0 0 0 - 0 0 0 0 18446744073709551615 1 2 3", "send a 1 14 0 0 0 0 0 0 zz 0 0 0 0 0", "recv a 1 99 1 2 3")
	for i, reply := range got[1:] {
		if !strings.HasPrefix(reply, "error ") {
			t.Errorf("line %d: %q", i+2, reply)
		}
	}
}
