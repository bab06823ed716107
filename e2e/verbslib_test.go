package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// conversationLimit is how long a conversation may take. On a machine whose processors are all taken by those who
// poll, each message may cost a time slice or more.
const conversationLimit = 90 * time.Second

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

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

// A program that is in the middle of its work when its daemon is killed hears of it, and ends.
func TestProgramsSurviveTheirDaemon(t *testing.T) {
	needPrograms(t)
	for _, args := range [][]string{{"ib_write_bw", "-D", "60"}, {"ib_send_bw", "-n", "1000000", "-e"}, {"ib_send_lat", "-n", "1000000", "-e"}, {"ib_send_lat", "-D", "60"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), conversationLimit)
			defer cancel()
			bin, err := softroceBinary()
			if err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(t.TempDir(), "s")
			daemon := exec.Command(bin, "daemon", "--socket", socket)
			if err := daemon.Start(); err != nil {
				t.Fatal(err)
			}
			for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
				time.Sleep(5 * time.Millisecond)
			}
			port := freePort(t)
			var cmds [2]*exec.Cmd
			var out [2]bytes.Buffer
			for i := range cmds {
				a := append([]string{"-d", fmt.Sprintf("softroce%d", i), "-x", "1", "-p", strconv.Itoa(port)}, args[1:]...)
				if i == 1 {
					a = append(a, "127.0.0.1")
				}
				cmds[i] = exec.CommandContext(ctx, args[0], a...)
				cmds[i].Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+library(t))
				cmds[i].Stdout, cmds[i].Stderr = &out[i], &out[i]
				if err := cmds[i].Start(); err != nil {
					t.Fatal(err)
				}
				for i == 0 && !listens(cmds[0].Process.Pid, port) && ctx.Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
			}
			for ofDaemon := 0; ofDaemon < 2 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				ofDaemon = count(t, bin, socket, "qp")
			}
			time.Sleep(300 * time.Millisecond) // into the middle of it
			daemon.Process.Kill()
			daemon.Wait()
			for i, c := range cmds {
				err := c.Wait()
				var exit *exec.ExitError
				if ctx.Err() != nil || !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signaled() {
					t.Errorf("end %d: %v, %v; want an exit status\n%s", i, err, ctx.Err(), &out[i])
				}
			}
		})
	}
}
