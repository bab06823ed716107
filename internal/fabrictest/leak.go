package fabrictest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// checkLeaks compares, when the test has taken everything down, what it holds with what
// it held: goroutines of this module, descriptors, and mappings of shared memory.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own, from the first use on.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := holdings()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		// Goroutines that were told to end may still be on their way.
		var leaks []string
		for wait := time.Millisecond; wait < time.Second; wait *= 2 {
			if leaks = holdings().beyond(before); len(leaks) == 0 {
				return
			}
			time.Sleep(wait)
		}
		t.Errorf("the test left behind:\n%s", strings.Join(leaks, "\n"))
	})
}

// A holding counts what of each kind there is.
type holding map[string]int

func holdings() holding {
	h := holding{}
	for _, g := range strings.Split(stacks(), "\n\n") {
		if _, creator, ok := strings.Cut(g, "created by softroce/"); ok {
			fn, _, _ := strings.Cut(creator, "\n")
			fn, _, _ = strings.Cut(fn, " in goroutine")
			h["goroutine of softroce/"+fn]++
		}
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil {
			continue // the descriptor that reads the directory
		}
		kind := to
		if !strings.HasPrefix(to, "anon_inode:") {
			kind, _, _ = strings.Cut(to, ":[") // sockets and pipes have numbers
		}
		if kind == to && strings.HasPrefix(kind, "/") && !strings.HasPrefix(kind, "/memfd:softroce") {
			continue // files are not ours
		}
		h["descriptor of "+kind]++
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range bytes.Lines(maps) {
		if _, name, ok := bytes.Cut(line, []byte("/memfd:softroce")); ok {
			h["mapping of softroce"+string(bytes.TrimSpace(name))]++
		}
	}
	return h
}

func stacks() string {
	for size := 1 << 20; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

func (h holding) beyond(before holding) (more []string) {
	for kind, n := range h {
		if n > before[kind] {
			more = append(more, fmt.Sprintf("%d %s", n-before[kind], kind))
		}
	}
	return more
}
