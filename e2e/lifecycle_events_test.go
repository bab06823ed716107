package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"softroce/verbs"
)

// TestProgramsHearThatAddressAndDeviceGo has a program of librdmacm listen at the address of an interface, which then loses the
// address, gets it back, and goes; then the daemon ends.
func TestProgramsHearThatAddressAndDeviceGo(t *testing.T) {
	needRoot(t, "network namespaces")
	const address = "10.78.13.1"
	libs := library(t)
	program := filepath.Join(t.TempDir(), "watch")
	command(t, "cc", "-D_GNU_SOURCE", "-o", program, "../libverbs/check/testdata/watch.c", "-L"+libs, "-lrdmacm", "-libverbs")
	ns := namespace(t, "events")
	command(t, "ip", "-n", ns, "link", "add", "rdma0", "type", "veth", "peer", "name", "other")
	command(t, "ip", "-n", ns, "addr", "add", address+"/24", "dev", "rdma0")
	command(t, "ip", "-n", ns, "link", "set", "rdma0", "up")
	command(t, "ip", "-n", ns, "link", "set", "other", "up")
	socket := filepath.Join(t.TempDir(), "s")
	daemon := startDaemon(t, inNamespace(ns), "--socket", socket, "--nic", "nic0=packet:rdma0")
	nic := openNIC(t, daemon, socket)
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
			t.Fatalf("the program says %q, want %q", lines.Text(), want)
		}
	}
	hang := time.AfterFunc(programLimit, func() { cmd.Process.Kill() })
	defer hang.Stop()

	expect("listening")
	command(t, "ip", "-n", ns, "addr", "del", address+"/24", "dev", "rdma0")
	expect("RDMA_CM_EVENT_ADDR_CHANGE")
	command(t, "ip", "-n", ns, "addr", "add", address+"/24", "dev", "rdma0")
	awaitAddress(t, nic, address)
	command(t, "ip", "-n", ns, "link", "del", "rdma0")
	expect("RDMA_CM_EVENT_ADDR_CHANGE")
	nic.Close()
	daemon.stop(t)
	expect("RDMA_CM_EVENT_DEVICE_REMOVAL")
	expect("No such device")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// awaitAddress waits until a NIC has an address.
func awaitAddress(t *testing.T, nic *verbs.Context, address string) {
	t.Helper()
	for limit := time.Now().Add(startLimit); ; time.Sleep(10 * time.Millisecond) {
		table, err := nic.GIDs()
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
