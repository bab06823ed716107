package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// servedProgram serves a verbs program in the guest and returns the COMMAND that reaches it.
func servedProgram(t *testing.T, g *rxelab.Guest) string {
	t.Helper()
	serveProgram(t, g)
	return fmt.Sprintf("tcp:%v:%d", g.Host, programPort)
}

// overEachLinkWithoutDaemon runs a test once for each link, whose softroce end the test provides.
func overEachLinkWithoutDaemon(t *testing.T, links []harness.Link, test func(t *testing.T, l harness.Link, s *harness.Testbed)) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	for _, l := range links {
		t.Run(l.Name, func(t *testing.T) {
			l.Exclusive.Acquire(t)
			s := harness.NewTestbedWithoutDaemon(t, l)
			t.Cleanup(func() { s.ClearImpairments(t) })
			test(t, l, s)
		})
	}
}

// replayOnto runs softroce replay --onto and returns its output. The clock of a guest may stop and
// catch up, so packets that come too early are accepted.
func replayOnto(t *testing.T, l harness.Link, s *harness.Testbed, command, file string, flags ...string) (string, error) {
	t.Helper()
	bin := harness.Binary(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the replay took too long"))
	defer cancel()
	args := append([]string{bin, "replay", "--onto", l.NIC(s.Lab), "--program", command, "--untimed", filepath.Join("../pcap-fixtures", file)}, flags...)
	out, err := s.Lab.Command(ctx, args...).CombinedOutput()
	return string(out), err
}

// kernelReplays are the captures that are replayed onto the kernel: the side to replay, text that
// the report must contain, and the known deviation that the report must name.
// docs/reference/interop.md lists the deviations.
var kernelReplays = []struct{ file, side, output, deviation string }{
	{"vp-all-ops.pcap", "both", "24 requests sent", ""},
	{"pp-rc-mtu1024.pcap", "requester", "2 streams", ""},
	{"write-bw-ackreq.pcap", "both", "470 requests, 10 replies sent", ""},
	{"read-bw-mtu4096.pcap", "requester", "", ""},
	{"atomic-cas.pcap", "both", "8 work requests posted", ""},
	{"vp-psn-wrap.pcap", "both", "", ""},
	{"vp-rnr.pcap", "both", "9 requests, 9 replies sent", ""},
	{"vp-rnr-multi.pcap", "both", "", "after an RNR NAK the rest of the message causes a sequence NAK for the same PSN"},
	{"vp-nak-badwrite.pcap", "both", "", ""},
	{"vp-nak-sendtoolong.pcap", "requester", "", "a SEND longer than the receive buffer is refused with remote operational error (0x63) instead of invalid request (0x61)"},
	{"loss-read-req.pcap", "both", "", "a READ retransmitted from its middle is answered with MIDDLE or LAST instead of FIRST or ONLY"},
	{"loss-pp-rc.pcap", "both", "1 left out", ""},
	{"loss-atomic.pcap", "requester", "58 left out", ""},
	{"dup-atomic.pcap", "requester", "", ""},
	{"reorder-write.pcap", "both", "", ""},
	{"cm-rping.pcap", "requester", "2 streams", ""},
	{"ip6-read-bw.pcap", "requester", "", ""},
	{"vp-no-answer.pcap", "responder", "12 requests, no replies sent", ""},
	{"vp-rnr-exceeded.pcap", "responder", "3 requests, 3 replies sent", ""},
	{"loss-write-req.pcap", "responder", "", ""},
	{"loss-read-resp.pcap", "responder", "", ""},
	{"vp-send-inv.pcap", "both", "", "the completion of a SEND with invalidate lacks IBV_WC_WITH_INV"},
	{"vp-uc-ops.pcap", "both", "14 requests sent", ""},
	{"loss-uc-write.pcap", "requester", "", ""},
}

// TestReplayOntoKernel replays captures of a kernel's NIC onto another one. As the responder the
// kernel must answer as softroce would, except for known deviations. As the requester, with the
// same work requests, it must send what softroce would send.
func TestReplayOntoKernel(t *testing.T) {
	overEachLinkWithoutDaemon(t, harness.Links, func(t *testing.T, l harness.Link, s *harness.Testbed) {
		command := servedProgram(t, s.Guest)
		for i, c := range kernelReplays {
			if l.Name != "packet" && i%2 == 1 {
				continue // half of them are enough on the other links
			}
			out, err := replayOnto(t, l, s, command, c.file, "--fast", "--side", c.side)
			if err != nil || !strings.Contains(out, "\nno differences in ") || !strings.Contains(withoutRepeats(out), c.output) {
				t.Errorf("%s: %v\n%s", c.file, err, out)
			}
			if got := deviationsIn(out); got != c.deviation {
				t.Errorf("%s: known deviations %q, want %q\n%s", c.file, got, c.deviation, out)
			}
		}
		t.Run("captured timing", func(t *testing.T) {
			start := time.Now()
			out, err := replayOnto(t, l, s, command, "vp-rnr.pcap", "--side", "requester")
			if err != nil || time.Since(start) < 200*time.Millisecond { // at least eight RNR NAKs of 20 ms each
				t.Errorf("%v after %v\n%s", err, time.Since(start), out)
			}
		})
	})
}

// withoutRepeats takes the requests that were sent again, because a guest was slow, out of the
// counts of a report.
func withoutRepeats(report string) string {
	return regexp.MustCompile(`(\d+) requests sent, (\d+) of them again`).ReplaceAllStringFunc(report, func(s string) string {
		var sent, again int
		fmt.Sscanf(s, "%d requests sent, %d", &sent, &again)
		return fmt.Sprintf("%d requests sent", sent-again)
	})
}

// timingDeviations are known deviations that occur only on a slow machine.
var timingDeviations = regexp.MustCompile(`^(a running timer|a missing response packet)`)

// deviationsIn returns the known deviations that a report names, each once.
func deviationsIn(report string) string {
	var names []string
	for _, m := range regexp.MustCompile(`known deviation: (.*?)(?: \(packets? [^)]*\))?\n`).FindAllStringSubmatch(report, -1) {
		if !slices.Contains(names, m[1]) && !timingDeviations.MatchString(m[1]) {
			names = append(names, m[1])
		}
	}
	return strings.Join(names, "; ")
}

// TestInteropDocumentListsCaptureDeviations verifies that docs/reference/interop.md lists exactly
// the deviations of kernelReplays.
func TestInteropDocumentListsCaptureDeviations(t *testing.T) {
	b, err := os.ReadFile(interopFile)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, c := range kernelReplays {
		if c.deviation != "" {
			want = append(want, fmt.Sprintf("| %s | %s |", c.file, c.deviation))
		}
	}
	_, table, _ := strings.Cut(string(b), "<!-- captures -->\n| capture | rxe 6.1 and 6.12 |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n<!--")
	if got := strings.Split(table, "\n"); !slices.Equal(got, want) {
		t.Errorf("%s has\n%s\nwant\n%s", interopFile, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReplayOntoKernelToleratesLoss verifies that lost packets are retransmitted and reported, and
// are no difference.
func TestReplayOntoKernelToleratesLoss(t *testing.T) {
	overEachLinkWithoutDaemon(t, harness.Links, func(t *testing.T, l harness.Link, s *harness.Testbed) {
		command := servedProgram(t, s.Guest)
		if err := s.Guest.ImpairIngress(t.Context(), "loss 3%"); err != nil {
			t.Fatal(err)
		}
		if err := s.Guest.ImpairEgress(t.Context(), "loss 1%"); err != nil {
			t.Fatal(err)
		}
		for _, c := range [][2]string{{"requester", "write-bw-ackreq.pcap"}, {"requester", "read-bw.pcap"}, {"responder", "loss-write-req.pcap"}} {
			file := c[1]
			out, err := replayOnto(t, l, s, command, file, "--fast", "--side", c[0])
			if err != nil {
				t.Errorf("%s: %v\n%s", file, err, out)
			}
			if file == "write-bw-ackreq.pcap" && !strings.Contains(out, "of them again") { // 470 packets
				t.Errorf("no packet was lost:\n%s", out)
			}
		}
	})
}

// TestReplayOntoSilentKernelFails expects one line of output. It runs on one link because it waits
// for a long timeout.
func TestReplayOntoSilentKernelFails(t *testing.T) {
	overEachLinkWithoutDaemon(t, harness.Links[:1], func(t *testing.T, l harness.Link, s *harness.Testbed) {
		command := servedProgram(t, s.Guest)
		if err := s.Guest.DropIngress(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, err := replayOnto(t, l, s, command, "pp-rc-mtu1024.pcap", "--fast")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(out, "softroce: the live NIC does not reply") || strings.Count(out, "\n") != 1 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
