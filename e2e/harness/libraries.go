package harness

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"softroce/verbs"
)

// NeedPrograms skips the test where the distribution's programs are not installed.
func NeedPrograms(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ibv_rc_pingpong", "ib_write_bw", "make", "cc"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	if testing.Short() {
		t.Skip("not with -short")
	}
}

// buildLibraries builds the replacements of libibverbs and librdmacm from this tree.
var buildLibraries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "lib")
	out, err := exec.Command("make", "-j2", "-C", "../libverbs", "OUT="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libs: %w: %s", err, out)
	}
	return dir, nil
})

// Libraries returns the directory of the replacements of libibverbs and librdmacm.
func Libraries(t *testing.T) string {
	t.Helper()
	dir, err := buildLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var sanitizeMu sync.Mutex

// SanitizedLibraries returns the directory of the same libraries built with sanitizers, and the
// runtime that a program preloads which was not built with them.
func SanitizedLibraries(t *testing.T) (dir, runtime string) {
	t.Helper()
	dir = Libraries(t)
	sanitizeMu.Lock()
	defer sanitizeMu.Unlock()
	RunCommand(t, "make", "-j2", "-C", "../libverbs", "OUT="+dir, "sanitized")
	return filepath.Join(dir, "sanitized"), strings.TrimSpace(RunCommand(t, "gcc", "-print-file-name=libasan.so"))
}

// GIDs returns the index of an IPv4 GID of a NIC, under false, and of an IPv6 GID that is not
// link-local, under true.
func GIDs(t *testing.T, socket, device string) map[bool]int {
	t.Helper()
	c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found := map[bool]int{}
	for limit := time.Now().Add(StartLimit); len(found) < 2; time.Sleep(20 * time.Millisecond) {
		table, err := c.GIDs(context.Background())
		if err != nil || time.Now().After(limit) {
			t.Fatalf("GIDs of %s: %v, %v", device, table, err)
		}
		for _, g := range table {
			if a := g.GID.Addr(); !a.IsLinkLocalUnicast() && !g.RoCEv1 {
				found[a.Is6()] = g.Index
			}
		}
	}
	return found
}
