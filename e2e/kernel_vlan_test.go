package e2e

import (
	"context"
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
	v := harness.IPVersion{Name: "VLAN", Prefix: vlanEmu, GuestGID: awaitGuestGID(t, s, "rxe0", netip.MustParsePrefix(vlanGuest).Addr())}
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

// vlanVeth creates a veth pair in the guest. On v0 is a second NIC of the kernel, and v1 is in a
// namespace. Both have addresses in the VLAN only. v0 leaves the tag in the frame, for the XDP
// program of v1.
const vlanVeth = `modprobe veth && modprobe 8021q && ip netns add vlan && ip -n vlan link set lo up || exit
	ip link add v0 type veth peer name v1 netns vlan && ethtool -K v0 txvlan off || exit
	for i in 0 1; do
		on="ip"; [ $i = 0 ] || on="ip -n vlan"
		$on link set v$i up && $on link add link v$i name v$i.7 type vlan id 7 && $on link set v$i.7 up || exit
		$on addr add 10.79.8.1$i/24 dev v$i.7 && $on addr add fd79:8::1$i/64 nodad dev v$i.7 || exit
	done
	rdma link add rxe7 type rxe netdev v0`

// TestKernelPingpongInVLANOverXDP has a daemon in the guest, too: the host's kernel may have no
// VLAN interfaces.
func TestKernelPingpongInVLANOverXDP(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t)
	s := harness.NewTestbedWithoutDaemon(t, harness.XDP)
	const within, program = "ip netns exec vlan ", "/tmp/softroce"
	putInGuest(t, s.Guest, harness.Binary(t), program)
	defer runInGuest(t, s, "ip netns del vlan")
	runInGuest(t, s, vlanVeth)
	ctx, cancel := context.WithCancel(t.Context())
	daemon, err := s.Guest.Start(ctx, harness.ProgramLimit, within+program+" daemon --socket /tmp/vlan --nic softroce0=xdp:v1")
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Wait()
	defer cancel()
	awaitOutput(t, daemon.Done(), daemon.Output, "\nsocket ")
	p := pingpong{1024, 10000, 50}
	for _, addr := range [][2]string{{"10.79.8.10", "10.79.8.11"}, {"fd79:8::10", "fd79:8::11"}} {
		var gid int
		entry := runInGuest(t, s, fmt.Sprintf("until %s show devices --socket /tmp/vlan | grep -ow 'gid [0-9]* %s'; do sleep 0.1; done", program, addr[1]))
		if _, err := fmt.Sscanf(entry, "gid %d", &gid); err != nil {
			t.Fatalf("GID index in %q: %v", entry, err)
		}
		kernel := "ibv_rc_pingpong -d rxe7 " + strings.Join(p.args(awaitGuestGID(t, s, "rxe7", netip.MustParseAddr(addr[0]))), " ")
		softroce := within + program + " pingpong --socket /tmp/vlan " + strings.Join(p.args(gid), " ")
		t.Run(addr[0]+"/kernel serves", func(t *testing.T) {
			served, serverErr, out, err := inGuest(t, s, "", kernel, softroce+" 10.79.8.10")
			checkPingpong(t, p, []byte(out), err, served, serverErr)
		})
		t.Run(addr[0]+"/kernel connects", func(t *testing.T) {
			served, serverErr, out, err := inGuest(t, s, within, softroce, kernel+" 10.79.8.11")
			checkPingpong(t, p, []byte(served), serverErr, out, err)
		})
	}
	// The VLAN interface counts only what has the tag.
	var received, sent int
	counters := runInGuest(t, s, "cd /sys/class/net/v0.7/statistics && cat rx_packets tx_packets")
	if _, err := fmt.Sscan(counters, &received, &sent); err != nil || received < 2000 || sent < 2000 {
		t.Errorf("the VLAN interface has received and sent %q packets, want at least 2000 each", counters)
	}
}

// inGuest runs two programs in the guest. The client starts when the server, whose namespace the
// command within enters, listens.
func inGuest(t *testing.T, s *harness.Testbed, within, server, client string) (served string, serverErr error, out string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	job, err := s.Guest.Start(ctx, 30*time.Second, server)
	if err != nil {
		t.Fatal(err)
	}
	out, err = s.Guest.Run(ctx, 30*time.Second, fmt.Sprintf("until %sss -Hltn | grep -q :%d; do sleep 0.1; done; %s", within, pingpongPort, client))
	if err != nil {
		cancel()
	}
	served, serverErr = job.Wait()
	return served, serverErr, out, err
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

// awaitGuestGID waits until an address is a GID of a NIC of the kernel, and returns its index.
func awaitGuestGID(t *testing.T, s *harness.Testbed, device string, a netip.Addr) int {
	t.Helper()
	b := a.As16() // maps IPv4
	var want []string
	for i := 0; i < len(b); i += 2 {
		want = append(want, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	out := runInGuest(t, s, fmt.Sprintf("cd /sys/class/infiniband/%s/ports/1/gids && until grep -lx %s *; do sleep 0.1; done", device, strings.Join(want, ":")))
	index, err := strconv.Atoi(strings.Fields(out)[0])
	if err != nil {
		t.Fatalf("GID index: %q", out)
	}
	return index
}
