package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// TestConnectionManagerProgramsInVLAN connects by addresses that the NICs have in a VLAN only: each
// packet, from the REQ on, is tagged.
func TestConnectionManagerProgramsInVLAN(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "vlan")
	nic := func(n int) string {
		return fmt.Sprintf("softroce%d=fabric:192.0.2.%d,10.77.7.%[2]d/24@%[3]d,fd77::%[2]d/64@%[3]d", n, n+1, vlanID)
	}
	socket := harness.DaemonIn(t, ns, "--nic", nic(0), "--nic", nic(1))
	client, server := harness.FabricEndpoints(ns, socket)
	for i, e := range []*harness.Endpoint{&client, &server} {
		e.Addr = map[bool]string{false: fmt.Sprint("10.77.7.", i+1), true: fmt.Sprint("fd77::", i+1)}
	}
	file := filepath.Join(t.ArtifactDir(), "vlan.pcapng")
	stop := harness.StartCapture(t, socket, file)
	runCMExchanges(t, server, client, []cmExchange{
		{name: "rping", server: "rping -s -a SELF -C 20 -S 5000 -V", client: "rping -c -a PEER -C 20 -S 5000 -V"},
		{name: "ucmatose", server: "ucmatose -b SELF -C 10 -S 500", client: "ucmatose -s PEER -C 10 -S 500", want: "test complete"},
		{name: "udaddy", server: "udaddy -b SELF", client: "udaddy -s PEER", want: "test complete"},
	})
	stop()
	harness.Judge(t, file, 2, 40)
	text, err := exec.Command(harness.Binary(t), "decode", "--all", file).Output()
	if err != nil {
		t.Fatalf("decode: %v\n%s", err, text)
	}
	all, in := strings.Count(string(text), "\n"), strings.Count(string(text), fmt.Sprintf(" vlan=%d ", vlanID))
	if in < 500 || in != all {
		t.Errorf("%d of %d packets have the VLAN's tag", in, all)
	}
}
