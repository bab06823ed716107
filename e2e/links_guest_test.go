package e2e

import (
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
func TestPacketLinkFollowsVLANInterfaces(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t)
	runWireTest(t, harness.BridgeLab(t).Guests[0], "modprobe veth; modprobe 8021q", "TestPacketLinkServesVLANs")
}

func TestXDPLinkBeforeLinux6_6(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	if harness.OtherKernel() {
		t.Skip("needs a kernel without XDP_USE_SG")
	}
	harness.BridgeGuest.Acquire(t)
	runWireTest(t, harness.BridgeLab(t).Guests[0], "modprobe veth", "TestXDPLinkWithoutSG")
}
