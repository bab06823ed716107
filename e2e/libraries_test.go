package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"softroce/verbs"
)

// libraries is the folder of the libraries that stand for libibverbs and its kin, built from this tree.
var libraries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "lib")
	out, err := exec.Command("make", "-C", "../libverbs", "OUT="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libs: %w: %s", err, out)
	}
	return dir, nil
})

// needPrograms leaves the test out where the distribution's programs are not installed.
func needPrograms(t *testing.T) {
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

// library is the folder of libraries.
func library(t *testing.T) string {
	t.Helper()
	dir, err := libraries()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// gids finds an IPv4 and an IPv6 GID of a NIC, the latter not of the link alone.
func gids(t *testing.T, socket, device string) map[bool]int {
	t.Helper()
	c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found := map[bool]int{}
	for limit := time.Now().Add(startLimit); len(found) < 2; time.Sleep(20 * time.Millisecond) {
		table, err := c.GIDs()
		if err != nil || time.Now().After(limit) {
			t.Fatalf("GIDs of %s: %v, %v", device, table, err)
		}
		for _, g := range table {
			if a := g.GID.Addr(); !a.IsLinkLocalUnicast() {
				found[a.Is6()] = g.Index
			}
		}
	}
	return found
}

// namespaces makes two network namespaces, for as long as the test runs, joined by the interface rdma0 of each.
func namespaces(t *testing.T) (names [2]string) {
	t.Helper()
	for i := range names {
		names[i] = fmt.Sprintf("softroce-e2e-%d-%d", os.Getpid(), i)
		command(t, "ip", "netns", "add", names[i])
		t.Cleanup(func() { exec.Command("ip", "netns", "del", names[i]).Run() })
	}
	command(t, "ip", "link", "add", "rdma0", "netns", names[0], "mtu", "5000", "type", "veth", "peer", "name", "rdma0", "netns", names[1], "mtu", "5000")
	for i, ns := range names {
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.78.9.%d/24", i+1), "dev", "rdma0")
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("fd00:78:9::%d/64", i+1), "dev", "rdma0", "nodad")
		command(t, "ip", "-n", ns, "link", "set", "rdma0", "up")
		command(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	return names
}
