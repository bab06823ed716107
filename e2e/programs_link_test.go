package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/control"
)

// A program goes on after a short failure of its link, and ends with the errors of its NIC's model
// after a long one.
func TestProgramWhoseLinkFails(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "link")
	socket := harness.DaemonIn(t, ns, "--nic", "mlx5_0=fabric:192.0.2.1,persona=connectx-7", "--nic", "rdma1=fabric:192.0.2.2")
	operator, err := control.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	setLink := func(device string, up bool) {
		if err := operator.SetLink(t.Context(), device, up); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	client := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "mlx5_0"})
	server := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "rdma1"})
	port := harness.FreePort()
	serverJob := server.Start(ctx, t, fmt.Sprintf("ib_write_bw -d rdma1 -x 0 -F -D 300 -p %d", port))
	if err := server.WaitListening(ctx, serverJob, port); err != nil {
		t.Fatalf("%v: %s", err, serverJob.Output())
	}
	job := client.Start(ctx, t, fmt.Sprintf("ib_write_bw -d mlx5_0 -x 1 -F -D 300 -p %d 127.0.0.1", port))
	awaitPackets(t, client, job, "at the beginning")
	for _, device := range []string{"mlx5_0", "rdma1"} {
		setLink(device, false)
		time.Sleep(50 * time.Millisecond)
		setLink(device, true)
		awaitPackets(t, client, job, "after the failure of "+device)
	}
	setLink("rdma1", false)
	out, err := job.Wait()
	if err == nil || !strings.Contains(out, "Failed status 12") || !strings.Contains(out, " 0x81") {
		t.Errorf("the client ended with %v, want status 12 and syndrome 0x81: %s", err, out)
	}
}

// awaitPackets waits until the NIC of a program that runs has received many more packets.
func awaitPackets(t *testing.T, e harness.Endpoint, job *harness.Job, when string) {
	t.Helper()
	for enough := receivedPackets(t, e.Socket, e.Device) + 1000; receivedPackets(t, e.Socket, e.Device) < enough; time.Sleep(5 * time.Millisecond) {
		if !job.Running() {
			t.Fatalf("%s: the program has ended: %s", when, job.Output())
		}
	}
}

// receivedPackets returns how many packets a NIC of the daemon at socket has received.
func receivedPackets(t *testing.T, socket, device string) uint64 {
	t.Helper()
	out, err := exec.Command(harness.Binary(t), "--socket", socket, "show", "counters", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var nics []struct {
		IfName string            `json:"ifname"`
		Values map[string]uint64 `json:"values"`
	}
	if err := json.Unmarshal(out, &nics); err != nil {
		t.Fatal(err)
	}
	for _, n := range nics {
		if n.IfName == device {
			return n.Values["port_rcv_packets"]
		}
	}
	t.Fatalf("no NIC %s in %s", device, out)
	return 0
}
