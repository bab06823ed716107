package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// The VLAN of the tests, and the guest's address in it.
const (
	vlanID    = 7
	vlanGuest = "10.79.7.20/24"
)

var vlanEmu = netip.MustParsePrefix("10.79.7.10/24")

// TestKernelPingpongInVLAN uses a VLAN interface of the guest, whose addresses are GIDs of rxe0,
// and a GID of softroce's NIC in the same VLAN.
func TestKernelPingpongInVLAN(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	harness.DgramGuest.Acquire(t)
	l := harness.Link{Name: "dgram", Exclusive: &harness.DgramGuest, Lab: harness.DgramLab, NIC: func(l *rxelab.Lab) string {
		g := l.Guests[0]
		return fmt.Sprintf("dgram:%v,%v,%v,%v@%d,mtu=9000,mac=%s", g.DgramPeer, g.Dgram, rxelab.Emu4, vlanEmu, vlanID, rxelab.MAC)
	}}
	s := harness.NewTestbed(t, l)
	runInGuest(t, s, fmt.Sprintf("modprobe 8021q; ip link add link eth0 name v%d type vlan id %d && ip addr add %s dev v%[1]d && ip link set v%[1]d up",
		vlanID, vlanID, vlanGuest))
	defer runInGuest(t, s, fmt.Sprintf("ip link del v%d", vlanID))
	v := harness.IPVersion{Name: "VLAN", Prefix: vlanEmu, GuestGID: awaitGuestGID(t, s, netip.MustParsePrefix(vlanGuest).Addr())}
	bin := harness.Binary(t)
	file := filepath.Join(t.ArtifactDir(), "vlan.pcapng")
	stop := harness.StartCapture(t, s.Socket, file)
	pingpongAsClient(t, s, v, pingpong{1024, 10000, 50})
	pingpongAsServer(t, s, v, pingpong{1024, 10000, 50})
	stop()
	text, err := exec.Command(bin, "decode", file).Output()
	if err != nil {
		t.Fatalf("decode: %v\n%s", err, text)
	}
	all, in := strings.Count(string(text), "\n"), strings.Count(string(text), fmt.Sprintf(" vlan=%d ", vlanID))
	if in < 1000 || in != all {
		t.Errorf("%d of %d packets have the VLAN's tag", in, all)
	}
}

// runInGuest runs a command in the guest that must succeed.
func runInGuest(t *testing.T, s *harness.Testbed, command string) string {
	t.Helper()
	out, err := s.Guest.Run(t.Context(), 20*time.Second, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return out
}

// awaitGuestGID waits until an address is a GID of rxe0, and returns its index.
func awaitGuestGID(t *testing.T, s *harness.Testbed, a netip.Addr) int {
	t.Helper()
	b := a.As16()
	b[10], b[11] = 0xff, 0xff
	var want []string
	for i := 0; i < len(b); i += 2 {
		want = append(want, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	out := runInGuest(t, s, fmt.Sprintf("cd /sys/class/infiniband/rxe0/ports/1/gids && until grep -lx %s *; do sleep 0.1; done", strings.Join(want, ":")))
	index, err := strconv.Atoi(strings.Fields(out)[0])
	if err != nil {
		t.Fatalf("GID index: %q", out)
	}
	return index
}
