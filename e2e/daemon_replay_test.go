package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A cable is a veth pair between two namespaces of its own.
type cable struct {
	ns    [2]string
	iface string // in both
}

// newCable lays a cable until the test ends. Its ends have addresses of 10.79.8.0/24.
func newCable(t *testing.T) *cable {
	t.Helper()
	needRoot(t, "network namespaces")
	c := &cable{iface: "v0"}
	for i := range c.ns {
		c.ns[i] = fmt.Sprintf("softroce-cable-%d-%c", os.Getpid(), 'a'+i)
		command(t, "ip", "netns", "add", c.ns[i])
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", c.ns[i]).CombinedOutput(); err != nil {
				t.Errorf("ip netns del: %v: %s", err, out)
			}
		})
	}
	command(t, "ip", "-n", c.ns[0], "link", "add", c.iface, "mtu", "9000", "type", "veth", "peer", "name", c.iface, "mtu", "9000", "netns", c.ns[1])
	for i, ns := range c.ns {
		command(t, "ip", "-n", ns, "link", "set", "lo", "up")
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.79.8.%d/24", i+1), "dev", c.iface)
		command(t, "ip", "-n", ns, "link", "set", c.iface, "up")
	}
	return c
}

// in prepares a program at one end of the cable.
func (c *cable) in(end int) func(ctx context.Context, argv ...string) *exec.Cmd {
	return func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", c.ns[end]}, argv...)...)
	}
}

// TestCapturesPlayOntoAnotherDaemon plays what the kernel's NIC was sent to a softroce daemon, whose verbs program has
// softroce's libibverbs; over a cable, and over one that loses packets.
func TestCapturesPlayOntoAnotherDaemon(t *testing.T) {
	betweenUs.take(t)
	c := newCable(t)
	dir := t.TempDir()
	command(t, "make", "-C", "../libverbs", "OUT="+dir)
	program := scenarioProgram(t)
	files := []string{"vp-all-ops", "loss-pp-rc", "write-bw-ackreq", "read-bw-mtu4096", "vp-rnr-multi", "vp-nak-sendtoolong",
		"vp-nak-oobwrite", "loss-atomic", "loss-read-resp", "dup-read", "cm-rping", "vp-psn-wrap", "vp-uc-ops"}
	for _, l := range []struct {
		name, here, there, faults, side string
		files                           []string
	}{
		{"packet", "packet", "packet", "", "both", files},
		{"udp", "udp", "udp", "", "both", files},
		{"lossy", "packet", "udp", "seed 3\ndrop chance 1%\ncorrupt receive chance 0.5%\n", "requester", files[:len(files)-1]},
		// Of these the live requester has a short timeout, as the captured ones had.
		{"lossy, responder", "packet", "udp", "seed 3\ndrop chance 2%\n", "responder", []string{"loss-atomic", "loss-write-req", "loss-read-req", "loss-pp-rc"}},
	} {
		t.Run(l.name, func(t *testing.T) {
			faults := filepath.Join(t.TempDir(), "faults")
			if err := os.WriteFile(faults, []byte(l.faults), 0o600); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(t.TempDir(), "s.sock")
			openNIC(t, startDaemon(t, c.in(1), "--socket", socket, "--nic", "softroce0="+l.there+":"+c.iface, "--fault", faults), socket)
			bin, err := softroceBinary()
			if err != nil {
				t.Fatal(err)
			}
			with := fmt.Sprintf("env SOFTROCE_SOCKET=%s LD_LIBRARY_PATH=%s %s", socket, dir, program)
			again := 0
			for _, f := range l.files {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				out, err := c.in(0)(ctx, bin, "replay", "--fast", "--side", l.side, "--onto", l.here+":"+c.iface, "--program", with, "../pcap-fixtures/"+f+".pcap").CombinedOutput()
				cancel()
				if err != nil {
					t.Errorf("%s: %v\n%s", f, err, out)
				}
				again += strings.Count(string(out), "of them again") + strings.Count(string(out), " lost: ")
			}
			if l.faults != "" && again == 0 {
				t.Error("nothing was lost: nothing was shown")
			}
		})
	}
}
