package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// wireTests builds the tests of package wire, with those that need a guest.
var wireTests = sync.OnceValues(func() (string, error) {
	path := filepath.Join(harness.WorkDir(), "wire.test")
	build := exec.Command("go", "test", "-c", "-tags", "guest", "-o", path, "softroce/wire")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// runWireTest runs a test of package wire in a guest, after a shell command.
func runWireTest(t *testing.T, g *rxelab.Guest, before, name string) {
	t.Helper()
	putInGuest(t, g, builtWireTests(t), guestWireTests)
	out, err := g.Run(t.Context(), 2*time.Minute, before+"; cd /tmp && "+guestWireTests+" -test.v -test.run ^"+name+"$")
	if err != nil || !strings.Contains(out, "--- PASS: "+name) {
		t.Errorf("%v\n%s", err, out)
	}
}

const guestWireTests = "/tmp/wire.test"

func builtWireTests(t *testing.T) string {
	t.Helper()
	path, err := wireTests()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func putInGuest(t *testing.T, g *rxelab.Guest, from, to string) {
	t.Helper()
	if err := g.Put(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
}

// The host's kernel may have no VLAN interfaces.
func TestLinksFollowVLANInterfaces(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t)
	for _, name := range []string{"TestPacketLinkFollowsVLANs", "TestXDPLinkFollowsVLANs"} {
		t.Run(name, func(t *testing.T) {
			runWireTest(t, harness.BridgeLab(t).Guests[0], "modprobe veth; modprobe 8021q", name)
		})
	}
}

func TestXDPLinkBeforeLinux6_6(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	if harness.OtherKernel() {
		t.Skip("needs a kernel without XDP_USE_SG")
	}
	harness.BridgeGuest.Acquire(t)
	runWireTest(t, harness.BridgeLab(t).Guests[0], "modprobe veth", "TestXDPLinkWithoutSG")
}

// The guest of this test has a NIC whose driver offers zero-copy.
func TestXDPLinkZeroCopy(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t) // with one more busy guest, all would be late
	lab := harness.ZeroCopyLab(t)
	for _, nic := range []string{"auto:eth0", "auto:eth0,engines=2"} {
		t.Run("daemon, "+nic, func(t *testing.T) { daemonZeroCopy(t, lab, nic) })
	}
	t.Run("link", func(t *testing.T) { linkZeroCopy(t, lab) }) // sets the interface down
}

// linkZeroCopy runs a test of the link in the guest. Its peer, which returns the frames, is the
// same test in the namespace of emu0.
func linkZeroCopy(t *testing.T, lab *rxelab.Lab) {
	const name = "TestXDPLinkZeroCopy"
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	cmd := lab.Command(ctx, builtWireTests(t), "-test.v", "-test.run", "^"+name+"$")
	cmd.Env = append(os.Environ(), "SOFTROCE_ECHO="+rxelab.Interface)
	peer := harness.StartJob(t, cmd)
	awaitOutput(t, peer.Done, peer.Output, "open\n")
	runWireTest(t, lab.Guests[0], "true", name)
	if !peer.Running() {
		t.Errorf("the peer has ended: %s", peer.Output())
	}
	cancel()
	peer.Wait()
}

// daemonZeroCopy connects a daemon in the guest, with a NIC that must get zero-copy, and one on the
// host.
func daemonZeroCopy(t *testing.T, lab *rxelab.Lab, nic string) {
	const softroce, socket = "/tmp/softroce", "/tmp/s"
	g := lab.Guests[0]
	putInGuest(t, g, harness.Binary(t), softroce)
	ctx, cancel := context.WithCancel(t.Context())
	daemon, err := g.Start(ctx, harness.ProgramLimit, softroce+" daemon --socket "+socket+" --nic softroce0="+nic)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	defer func() {
		cancel()
		daemon.Wait()
	}()
	awaitOutput(t, daemon.Done(), daemon.Output, "\nsocket ")
	if first, want := daemon.Output(), "softroce0 on xdp:eth0 (zero-copy): state ACTIVE"; !strings.HasPrefix(first, want) {
		t.Fatalf("daemon in the guest: %s", first)
	}
	s := harness.NewTestbed(t, harness.Link{Name: "packet", Lab: func(*testing.T) *rxelab.Lab { return lab },
		NIC: func(*rxelab.Lab) string { return "packet:" + rxelab.Interface }})
	for _, v := range harness.IPVersions {
		p := pingpong{1024, 10000, 50}
		pingpongAsServerOf(t, s, v, p, softroce+" pingpong --socket "+socket+" "+strings.Join(p.args(v.GuestGID), " "))
	}
}

// awaitOutput waits until a program, which ends at some time, has printed a text.
func awaitOutput(t *testing.T, done <-chan struct{}, output func() string, text string) {
	t.Helper()
	for !strings.Contains(output(), text) {
		select {
		case <-done:
			t.Fatalf("the program has ended: %s", output())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
