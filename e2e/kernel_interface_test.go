package e2e

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/verbs"
)

// TestKernelPingpongOnChangedInterface changes the interface of softroce's NIC. The guest learns a
// new MAC from the ARP request that precedes softroce's packets.
func TestKernelPingpongOnChangedInterface(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	for _, l := range harness.LinksAnd(harness.XDP) {
		if l.Name == "dgram" {
			continue // it has no interface
		}
		t.Run(l.Name, func(t *testing.T) {
			l.Exclusive.Acquire(t)
			testKernelOnChangedInterface(t, harness.NewTestbed(t, l))
		})
	}
}

func testKernelOnChangedInterface(t *testing.T, s *harness.Testbed) {
	const address, mac = "10.77.0.77/24", "52:54:00:77:00:99"
	ipv4, p := harness.IPVersions[0], pingpong{1024, 4096, 20}
	changed := ipv4
	changed.Prefix = netip.MustParsePrefix(address)
	ip := func(commands ...string) (failed error) {
		for _, c := range commands {
			argv := append([]string{"-n", s.Lab.EmuNamespace()}, strings.Fields(c)...)
			if out, err := exec.Command("ip", argv...).CombinedOutput(); err != nil {
				failed = err
				t.Logf("ip %s: %v: %s", c, err, out)
			}
		}
		return failed
	}
	change := func(commands ...string) {
		t.Helper()
		if ip(commands...) != nil {
			t.FailNow()
		}
	}
	mtu := func(want verbs.MTU) {
		t.Helper()
		for limit := time.Now().Add(harness.StartLimit); ; time.Sleep(10 * time.Millisecond) {
			port, err := s.NIC.QueryPort(t.Context())
			if err == nil && port.ActiveMTU == want {
				return
			}
			if err != nil || time.Now().After(limit) {
				t.Fatalf("%+v, %v, want MTU %v", port, err, want)
			}
		}
	}
	// Other tests use the interface, too. The guest learns the MAC again.
	defer pingpongAsClient(t, s, ipv4, p)
	defer ip("link set emu0 up", "link set emu0 mtu 9000", "link set emu0 address "+rxelab.MAC,
		"addr replace "+rxelab.Emu4.String()+" dev emu0", "addr replace "+rxelab.Emu6.String()+" dev emu0 nodad")
	both := func(v harness.IPVersion) {
		t.Helper()
		pingpongAsClient(t, s, v, p)
		pingpongAsServer(t, s, v, p)
	}

	change("link set emu0 down", "link set emu0 up")
	both(ipv4)
	change("link set emu0 mtu 1500")
	mtu(verbs.MTU1024)
	both(ipv4)
	change("link set emu0 mtu 9000")
	mtu(verbs.MTU4096)
	change("addr add " + address + " dev emu0")
	awaitAddress(t, s.NIC, changed.Prefix.Addr().String())
	both(changed)
	change("addr del " + address + " dev emu0")
	both(ipv4)

	change("link set emu0 address " + mac)
	file := filepath.Join(t.ArtifactDir(), "mac.pcapng")
	stop := harness.StartCapture(t, s.Socket, file)
	both(ipv4)
	stop()
	sources := map[string]int{}
	for _, f := range harness.Frames(t, file) {
		if len(f.Data) > 12 {
			sources[net.HardwareAddr(f.Data[6:12]).String()]++
		}
	}
	if sources[mac] < 40 || sources[rxelab.MAC] > 0 {
		t.Errorf("frames by source: %v, want those of %s", sources, mac)
	}
}
