package harness

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"softroce/e2e/rxelab"
	"softroce/verbs"
)

// A Link is a way to connect softroce and the guest.
type Link struct {
	Name      string
	Exclusive *Exclusive // to acquire before Lab is called
	Lab       func(t *testing.T) *rxelab.Lab
	NIC       func(*rxelab.Lab) string // the LINK of the daemon's option --nic
}

// kernelPackage is the Debian package of the guests' kernel; "" is rxelab.KernelStable.
var kernelPackage = os.Getenv("SOFTROCE_E2E_KERNEL")

// OtherKernel reports whether the guests run another kernel than the stable one, with which every
// test runs.
func OtherKernel() bool { return kernelPackage != "" && kernelPackage != rxelab.KernelStable }

// Links are the links over which tests run. Their behavior depends on the kernel of the host, not
// on the guest's, so one is enough with another kernel in the guest.
var Links = func() []Link {
	all := []Link{
		{"packet", &BridgeGuest, BridgeLab, func(*rxelab.Lab) string { return "packet:" + rxelab.Interface }},
		{"udp", &BridgeGuest, BridgeLab, func(*rxelab.Lab) string { return "udp:" + rxelab.Interface }},
		{"dgram", &DgramGuest, DgramLab, func(l *rxelab.Lab) string {
			g := l.Guests[0]
			return fmt.Sprintf("dgram:%v,%v,%v,%v,mtu=9000,mac=%s", g.DgramPeer, g.Dgram, rxelab.Emu4, rxelab.Emu6, rxelab.MAC)
		}},
	}
	if OtherKernel() {
		return all[:1]
	}
	return all
}()

// XDP is the link xdp, for the tests that show most of a link.
var XDP = Link{"xdp", &BridgeGuest, BridgeLab, func(*rxelab.Lab) string { return "xdp:" + rxelab.Interface }}

// LinksAnd returns Links, and more links unless the guest runs another kernel.
func LinksAnd(more ...Link) []Link {
	if OtherKernel() {
		return Links
	}
	return slices.Concat(Links, more)
}

// OverEachLink runs a test once for each of LinksAnd(more), with a new daemon.
func OverEachLink(t *testing.T, test func(t *testing.T, s *Testbed), more ...Link) {
	NeedRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	for _, l := range LinksAnd(more...) {
		t.Run(l.Name, func(t *testing.T) {
			l.Exclusive.Acquire(t)
			test(t, NewTestbed(t, l))
		})
	}
}

// A Testbed is a guest with the kernel's NIC and a daemon with softroce's, connected by one link.
type Testbed struct {
	LinkName string
	Lab      *rxelab.Lab
	Guest    *rxelab.Guest
	NIC      *verbs.Context // nil without a daemon
	Socket   string         // of the daemon
}

// NewTestbed starts a daemon on the link. The test must hold the link's Exclusive.
func NewTestbed(t *testing.T, l Link) *Testbed {
	t.Helper()
	s := NewTestbedWithoutDaemon(t, l)
	s.Socket = filepath.Join(t.TempDir(), "s.sock")
	daemon := StartDaemon(t, s.Lab.Command, "--socket", s.Socket, "--nic", "softroce0="+l.NIC(s.Lab))
	s.NIC = OpenNIC(t, daemon, s.Socket)
	return s
}

// NewTestbedWithoutDaemon leaves softroce's end of the link to the test.
func NewTestbedWithoutDaemon(t *testing.T, l Link) *Testbed {
	t.Helper()
	lab := l.Lab(t)
	s := &Testbed{LinkName: l.Name, Lab: lab, Guest: lab.Guests[0]}
	s.ClearImpairments(t)
	s.record(t)
	return s
}

// OnFirstLink reports whether the testbed uses the first link. A test runs all of its cases there.
// On other links it runs the cases that the path of the packets could affect: a transport does not
// know its link.
func (s *Testbed) OnFirstLink() bool { return s.LinkName == Links[0].Name }

// record captures the traffic on the bridge if the test runs with go test -artifacts.
func (s *Testbed) record(t *testing.T) {
	t.Helper()
	if f := flag.Lookup("test.artifacts"); f == nil || f.Value.String() != "true" {
		return
	}
	stop, err := s.Lab.Capture(context.WithoutCancel(t.Context()), filepath.Join(t.ArtifactDir(), "bridge.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("tcpdump: %v", err)
		}
	})
}

// ClearImpairments undoes what a test has done to the guest's network.
func (s *Testbed) ClearImpairments(t *testing.T) {
	t.Helper()
	if err := s.Guest.ClearImpairments(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// An IPVersion is the address family of the RoCE packets.
type IPVersion struct {
	Name     string
	IPv6     bool
	Prefix   netip.Prefix // of softroce's address
	GuestGID int          // index of the guest's GID
}

// IPVersions are both address families.
var IPVersions = []IPVersion{
	{"IPv4", false, rxelab.Emu4, rxelab.GIDIndex(false)},
	{"IPv6", true, rxelab.Emu6, rxelab.GIDIndex(true)},
}

// GIDIndex returns the index of softroce's GID in the GID table of its NIC.
func (s *Testbed) GIDIndex(t *testing.T, v IPVersion) int {
	t.Helper()
	gids, err := s.NIC.GIDs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gids {
		if g.GID.Addr() == v.Prefix.Addr() {
			return g.Index
		}
	}
	t.Fatalf("no GID for %v among %v", v.Prefix.Addr(), gids)
	return 0
}

// Endpoint returns softroce's end of the testbed.
func (s *Testbed) Endpoint(t *testing.T) Endpoint {
	return OnDaemon(s.Lab.EmuNamespace(), s.Socket, Endpoint{
		Device: "softroce0", Host: s.Lab.Host().String(),
		GID: map[bool]string{
			false: fmt.Sprint(s.GIDIndex(t, IPVersions[0])),
			true:  fmt.Sprint(s.GIDIndex(t, IPVersions[1])),
		},
		Addr: map[bool]string{false: rxelab.Emu4.Addr().String(), true: rxelab.Emu6.Addr().String()},
	})
}
