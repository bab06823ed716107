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

// checkLeaks compares the goroutines of this module, the descriptors and the mappings of shared
// memory before the test with those after its cleanup.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller opens descriptors at its first use.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := openResources()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		// Goroutines may need a moment to end.
		var leaks []string
		for wait := time.Millisecond; wait < time.Second; wait *= 2 {
			if leaks = openResources().beyond(before); len(leaks) == 0 {
				return
			}
			time.Sleep(wait)
		}
		t.Errorf("the test leaked:\n%s", strings.Join(leaks, "\n"))
	})
}

// resources counts resources by kind.
type resources map[string]int

func openResources() resources {
	r := resources{}
	for _, g := range strings.Split(stacks(), "\n\n") {
		if _, creator, ok := strings.Cut(g, "created by softroce/"); ok {
			fn, _, _ := strings.Cut(creator, "\n")
			fn, _, _ = strings.Cut(fn, " in goroutine")
			r["goroutine of softroce/"+fn]++
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
			continue // a file that this module does not open
		}
		r["descriptor of "+kind]++
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range bytes.Lines(maps) {
		if _, name, ok := bytes.Cut(line, []byte("/memfd:softroce")); ok {
			r["mapping of softroce"+string(bytes.TrimSpace(name))]++
		}
	}
	return r
}

func stacks() string {
	for size := 1 << 20; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

func (r resources) beyond(before resources) (more []string) {
	for kind, n := range r {
		if n > before[kind] {
			more = append(more, fmt.Sprintf("%d %s", n-before[kind], kind))
		}
	}
	return more
}
