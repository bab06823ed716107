package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/verbs"
)

// TestProgramsGetAddressAndDeviceRemovalEvents runs a librdmacm program that listens at the address
// of an interface. The interface loses the address, gets it back and is deleted. Then the daemon
// ends.
func TestProgramsGetAddressAndDeviceRemovalEvents(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	const address = "10.78.13.1"
	libs := harness.Libraries(t)
	program := filepath.Join(t.TempDir(), "watch")
	harness.RunCommand(t, "cc", "-D_GNU_SOURCE", "-o", program, "../libverbs/check/testdata/print_cm_events.c", "-L"+libs, "-lrdmacm", "-libverbs")
	ns := harness.Namespace(t, "events")
	harness.RunCommand(t, "ip", "-n", ns, "link", "add", "rdma0", "type", "veth", "peer", "name", "other")
	harness.RunCommand(t, "ip", "-n", ns, "addr", "add", address+"/24", "dev", "rdma0")
	harness.RunCommand(t, "ip", "-n", ns, "link", "set", "rdma0", "up")
	harness.RunCommand(t, "ip", "-n", ns, "link", "set", "other", "up")
	socket := filepath.Join(t.TempDir(), "s")
	daemon := harness.StartDaemon(t, harness.InNamespace(ns), "--socket", socket, "--nic", "nic0=packet:rdma0")
	nic := harness.OpenNIC(t, daemon, socket)
	awaitAddress(t, nic, address)

	cmd := exec.CommandContext(t.Context(), program, address)
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+libs)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	expect := func(want string) {
		t.Helper()
		if lines.Scan(); lines.Text() != want {
			t.Fatalf("the program printed %q, want %q", lines.Text(), want)
		}
	}
	hang := time.AfterFunc(harness.ProgramLimit, func() { cmd.Process.Kill() })
	defer hang.Stop()

	expect("listening")
	harness.RunCommand(t, "ip", "-n", ns, "addr", "del", address+"/24", "dev", "rdma0")
	expect("RDMA_CM_EVENT_ADDR_CHANGE")
	harness.RunCommand(t, "ip", "-n", ns, "addr", "add", address+"/24", "dev", "rdma0")
	awaitAddress(t, nic, address)
	harness.RunCommand(t, "ip", "-n", ns, "link", "del", "rdma0")
	expect("RDMA_CM_EVENT_ADDR_CHANGE")
	nic.Close()
	daemon.Stop(t)
	expect("RDMA_CM_EVENT_DEVICE_REMOVAL")
	expect("No such device")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// awaitAddress waits until a NIC has a GID for an address.
func awaitAddress(t *testing.T, nic *verbs.Context, address string) {
	t.Helper()
	for limit := time.Now().Add(harness.StartLimit); ; time.Sleep(10 * time.Millisecond) {
		table, err := nic.GIDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range table {
			if g.GID.Addr().String() == address {
				return
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("no GID for %s: %v", address, table)
		}
	}
}
