package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/e2e/harness"
	"softroce/internal/capturetest"
)

// TestReplayOntoDaemon replays captures of the kernel's NIC onto a softroce daemon, whose verbs
// program uses softroce's libibverbs, over a veth pair with and without packet loss.
func TestReplayOntoDaemon(t *testing.T) {
	harness.LocalPrograms.Acquire(t)
	c := harness.NewVethLink(t)
	dir := harness.Libraries(t)
	program := scenarioProgram(t)
	files := []string{"vp-all-ops", "loss-pp-rc", "write-bw-ackreq", "read-bw-mtu4096", "vp-rnr-multi", "vp-nak-sendtoolong",
		"vp-nak-oobwrite", "loss-atomic", "loss-read-resp", "dup-read", "cm-rping", "vp-psn-wrap", "vp-uc-ops"}
	for _, l := range []struct {
		name, here, there, faults, side string
		roceV1                          bool
		files                           []string
	}{
		{"packet", "packet", "packet", "", "both", false, files},
		{"RoCE v1", "packet", "packet", "", "both", true, []string{"vp-all-ops", "loss-pp-rc", "loss-read-resp", "vp-uc-ops"}},
		{"udp", "udp", "udp", "", "both", false, files},
		// A NAK that ends a connection is not repeated if it is lost.
		{"lossy", "packet", "udp", "seed 3\ndrop chance 1%\ncorrupt receive chance 0.5%\n", "requester", false, []string{
			"vp-all-ops", "loss-pp-rc", "write-bw-ackreq", "read-bw-mtu4096", "vp-rnr-multi",
			"loss-atomic", "loss-read-resp", "dup-read", "cm-rping", "vp-psn-wrap"}},
		// The live requester has a short timeout here, as the captured ones had. If it does not
		// receive a NAK, and nothing else is lost, it looks like one that ignores NAKs.
		{"lossy, responder", "packet", "udp", "seed 3\ndrop kind request chance 2%\ndrop kind ack chance 2%\n" +
			"drop kind read_response chance 2%\ndrop kind atomic_ack chance 2%\n", "responder", false, []string{"loss-atomic", "loss-write-req", "loss-read-req", "loss-pp-rc"}},
	} {
		t.Run(l.name, func(t *testing.T) {
			faults := filepath.Join(t.TempDir(), "faults")
			if err := os.WriteFile(faults, []byte(l.faults), 0o600); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(t.TempDir(), "s.sock")
			harness.OpenNIC(t, harness.StartDaemon(t, c.In(1), "--socket", socket, "--nic", "softroce0="+l.there+":"+c.Interface, "--fault", faults), socket)
			bin := harness.Binary(t)
			with := fmt.Sprintf("env SOFTROCE_SOCKET=%s LD_LIBRARY_PATH=%s %s", socket, dir, program)
			again := 0
			for _, f := range l.files {
				file := "../pcap-fixtures/" + f + ".pcap"
				if l.roceV1 {
					file = roceV1Capture(t, file)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				out, err := c.In(0)(ctx, bin, "replay", "--fast", "--side", l.side, "--onto", l.here+":"+c.Interface, "--program", with, file).CombinedOutput()
				cancel()
				if err != nil {
					t.Errorf("%s: %v\n%s", f, err, out)
				}
				again += strings.Count(string(out), "of them again") + strings.Count(string(out), " lost: ")
			}
			if l.faults != "" && again == 0 {
				t.Error("no packet was lost, so the test shows nothing")
			}
		})
	}
}

// roceV1Capture writes a capture as one of RoCE v1 to a new file, and returns its name.
func roceV1Capture(t *testing.T, name string) string {
	t.Helper()
	ps, err := capture.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(name))
	w, err := capture.Create(file, "v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range capturetest.RoCEv1(t, ps) {
		if err := w.WriteFrame(p.Time.UnixNano(), 0, p.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestReplayOntoUDPRefusesRoCEv1 replays a capture of RoCE v1 onto a link of IP packets.
func TestReplayOntoUDPRefusesRoCEv1(t *testing.T) {
	harness.LocalPrograms.Acquire(t)
	c := harness.NewVethLink(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	harness.OpenNIC(t, harness.StartDaemon(t, c.In(1), "--socket", socket, "--nic", "softroce0=packet:"+c.Interface), socket)
	bin := harness.Binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := c.In(0)(ctx, bin, "replay", "--onto", "udp:"+c.Interface, "--program", "env SOFTROCE_SOCKET="+socket+" "+bin+" answer",
		roceV1Capture(t, "../pcap-fixtures/vp-all-ops.pcap")).CombinedOutput()
	want := "the link udp:" + c.Interface + " does not carry it; packet, xdp and dgram links do"
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s", err, out)
	}
}
