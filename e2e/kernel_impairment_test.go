package e2e

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// An impairment is what the guest's network emulator does to packets, as arguments of netem.
type impairment struct {
	name    string
	egress  string // for packets that the guest sends
	ingress string // for packets that it receives
}

var impairments = []impairment{
	{name: "loss both ways", egress: "loss 4%", ingress: "loss 4%"},
	{name: "loss towards softroce", egress: "loss 5%"},
	{name: "loss towards the kernel", ingress: "loss 5%"},
	{name: "duplication both ways", egress: "duplicate 20%", ingress: "duplicate 20%"},
	{name: "reordering towards softroce", egress: "delay 5ms reorder 80%"},
	{name: "reordering towards the kernel", ingress: "delay 5ms reorder 80%"},
}

// impairedOps are operations of every kind, many of them outstanding at the same time.
const impairedOps = "send:3000 +sendimm:20000 +write:50000@200000 +faa:5@1000008 writeimm:30000@300000 read:60000@400000 " +
	"+faa:7@1000016 +cas:1,2@1000024 +read:5000@500000 +faa:9@1000032 read:5000@600000 " +
	"+write:1@700000 +write:2@700001 +write:3@700003 +send:1 +send:0 +sendse:5000 write:20000@800000 " +
	"+write:100000@100000 +send:1 +read:100000@900000 +faa:1@1000000 +faa:1@1000040 write:100000@100000 sendimm:60000"

// onePacketReads are the same operations with READs of one packet, for the kernel as the requester.
// If the kernel requests the rest of a READ again, and then receives a response that it considered
// lost, it may complete the READ without its data and enter the error state (e2e/rxelab/NOTES.md).
// A lost response is enough for that, and so is one that a busy machine delays.
var onePacketReads = regexp.MustCompile(`read:\d+`).ReplaceAllString(impairedOps, "read:1000")

// TestImpairedNetworkWithKernel runs an exchange in each role for each impairment, one over IPv4
// and one over IPv6.
func TestImpairedNetworkWithKernel(t *testing.T) {
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		list := impairments
		if !s.OnFirstLink() {
			list = list[:1]
		}
		for i, im := range list {
			t.Run(im.name, func(t *testing.T) {
				recordFailure(t, s)
				impairGuest(t, s, im)
				c := exchange{ops: impairedOps, client: optionsWith(), server: optionsWith(), limit: 90 * time.Second}
				one, other := harness.IPVersions[i%2], harness.IPVersions[1-i%2]
				t.Run(one.Name+"/kernel serves", func(t *testing.T) { runExchange(t, s, one, c, false) })
				c.ops = onePacketReads
				t.Run(other.Name+"/kernel connects", func(t *testing.T) { runExchange(t, s, other, c, true) })
				if lost := droppedPackets(t, s); strings.Contains(im.egress+im.ingress, "loss") && lost == 0 {
					t.Error("the guest dropped no packet, so the test shows nothing")
				}
			})
		}
	}, harness.XDP)
}

// recordFailure captures the daemon's packets until the test ends. If it fails, it says what check
// finds in them.
func recordFailure(t *testing.T, s *harness.Testbed) {
	file := filepath.Join(t.ArtifactDir(), "daemon.pcapng")
	stop := harness.StartCapture(t, s.Socket, file)
	t.Cleanup(func() {
		if stop(); t.Failed() {
			out, err := exec.Command(harness.Binary(t), "check", file).CombinedOutput()
			t.Logf("check: %v\n%s", err, out)
		}
	})
}

// impairGuest impairs the guest's network until the test ends.
func impairGuest(t *testing.T, s *harness.Testbed, im impairment) {
	t.Helper()
	t.Cleanup(func() { s.ClearImpairments(t) })
	var errs []error
	if im.egress != "" {
		errs = append(errs, s.Guest.ImpairEgress(t.Context(), im.egress))
	}
	if im.ingress != "" {
		errs = append(errs, s.Guest.ImpairIngress(t.Context(), im.ingress))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

var droppedForm = regexp.MustCompile(`qdisc netem .*\n.*\(dropped (\d+),`)

// droppedPackets returns how many packets the guest's network emulator has dropped.
func droppedPackets(t *testing.T, s *harness.Testbed) (n int) {
	t.Helper()
	out, err := s.Guest.Run(t.Context(), 10*time.Second, "tc -s qdisc show")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range droppedForm.FindAllStringSubmatch(out, -1) {
		v, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += v
	}
	return n
}
