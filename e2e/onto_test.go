package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/e2e/rxelab"
)

// programOf has a verbs program wait in the guest and returns the COMMAND that reaches it.
func programOf(t *testing.T, g *rxelab.Guest) string {
	t.Helper()
	serveProgram(t, g)
	return fmt.Sprintf("tcp:%v:%d", g.Host, programPort)
}

// overEachCable runs a test once for each link, which nothing else uses.
func overEachCable(t *testing.T, test func(t *testing.T, l link, s *site)) {
	overCables(t, links, test)
}

func overCables(t *testing.T, links []link, test func(t *testing.T, l link, s *site)) {
	needRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	for _, l := range links {
		t.Run(l.name, func(t *testing.T) {
			l.lane.take(t)
			lab, err := l.lab()
			if err != nil {
				t.Fatal(err)
			}
			s := &site{lab: lab, guest: lab.Guests[0]}
			s.calm(t)
			t.Cleanup(func() { s.calm(t) })
			s.record(t)
			test(t, l, s)
		})
	}
}

// playOnto runs softroce replay --onto and returns what it says.
func playOnto(t *testing.T, l link, s *site, command, file string, flags ...string) (string, error) {
	t.Helper()
	bin, err := softroceBinary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the play took too long"))
	defer cancel()
	args := append([]string{bin, "replay", "--onto", l.nic(s.lab), "--program", command, filepath.Join("../pcap-fixtures", file)}, flags...)
	out, err := s.lab.Command(ctx, args...).CombinedOutput()
	return string(out), err
}

// TestCapturesPlayOntoTheKernel plays what one kernel's NIC was once sent to another one: it answers as softroce would, but
// for its known departures. And what it was answered, to one that has the same work: it asks as softroce would.
func TestCapturesPlayOntoTheKernel(t *testing.T) {
	overEachCable(t, func(t *testing.T, l link, s *site) {
		command := programOf(t, s.guest)
		for i, c := range []struct{ file, says string }{
			{"vp-all-ops.pcap", " requests sent"}, // how many depends on the way
			{"pp-rc-mtu1024.pcap", "2 streams"},
			{"write-bw-ackreq.pcap", ""},
			{"read-bw-mtu4096.pcap", ""},
			{"atomic-cas.pcap", ""},
			{"vp-psn-wrap.pcap", ""},
			{"vp-rnr.pcap", ""},
			{"vp-rnr-multi.pcap", "after an RNR NAK the rest of the message"},
			{"vp-nak-badwrite.pcap", ""},
			{"vp-nak-sendtoolong.pcap", "refused as remote operational error (0x63)"},
			{"loss-read-req.pcap", "asked for again from its middle"},
			{"loss-pp-rc.pcap", "1 left out"},
			{"loss-atomic.pcap", "58 left out"},
			{"dup-atomic.pcap", ""},
			{"reorder-write.pcap", ""},
			{"cm-rping.pcap", "2 streams"},
			{"ip6-read-bw.pcap", ""},
			{"vp-no-answer.pcap", ""},
			{"vp-rnr-exceeded.pcap", ""},
			{"loss-write-req.pcap", ""},
			{"loss-read-resp.pcap", ""},
			{"vp-send-inv.pcap", "does not say so in its completion"},
			{"vp-uc-ops.pcap", "14 requests sent"},
			{"loss-uc-write.pcap", ""},
		} {
			side := "both"
			if l.name != "packet" { // one does for what a link may change
				side = []string{"requester", "responder"}[i%2]
			}
			out, err := playOnto(t, l, s, command, c.file, "--fast", "--side", side)
			if err != nil || !strings.Contains(out, "\nno differences\n") || side != "responder" && !strings.Contains(out, c.says) {
				t.Errorf("%s: %v\n%s", c.file, err, out)
			}
		}
		t.Run("captured timing", func(t *testing.T) {
			start := time.Now()
			out, err := playOnto(t, l, s, command, "vp-rnr.pcap", "--side", "requester")
			if err != nil || time.Since(start) < 200*time.Millisecond { // eight RNR NAKs of 20 ms each and more
				t.Errorf("%v after %v\n%s", err, time.Since(start), out)
			}
		})
	})
}

// TestALossyWayToTheKernelIsNoDifference: what is lost is sent again, and told.
func TestALossyWayToTheKernelIsNoDifference(t *testing.T) {
	overEachCable(t, func(t *testing.T, l link, s *site) {
		command := programOf(t, s.guest)
		if err := s.guest.SpoilIngress(t.Context(), "loss 3%"); err != nil {
			t.Fatal(err)
		}
		if err := s.guest.SpoilEgress(t.Context(), "loss 1%"); err != nil {
			t.Fatal(err)
		}
		for _, c := range [][2]string{{"requester", "write-bw-ackreq.pcap"}, {"requester", "read-bw.pcap"}, {"responder", "loss-write-req.pcap"}} {
			file := c[1]
			out, err := playOnto(t, l, s, command, file, "--fast", "--side", c[0])
			if err != nil {
				t.Errorf("%s: %v\n%s", file, err, out)
			}
			if file == "write-bw-ackreq.pcap" && !strings.Contains(out, "of them again") { // 470 packets
				t.Errorf("nothing was lost:\n%s", out)
			}
		}
	})
}

// TestAKernelThatDoesNotAnswerIsAnError has one line for it. On every link silence is the same, and long.
func TestAKernelThatDoesNotAnswerIsAnError(t *testing.T) {
	overCables(t, links[:1], func(t *testing.T, l link, s *site) {
		command := programOf(t, s.guest)
		if err := s.guest.Deafen(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, err := playOnto(t, l, s, command, "pp-rc-mtu1024.pcap", "--fast")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(out, "softroce: the live NIC does not answer") || strings.Count(out, "\n") != 1 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
