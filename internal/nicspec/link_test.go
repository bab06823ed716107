package nicspec

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"softroce/wire"
)

// inNamespace runs f in a new network namespace with a veth pair, v0 and v1, on a thread that ends
// with f. Without root it skips the test, except in CI.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("network namespaces require root, and CI must not skip tests")
		}
		t.Skip("network namespaces require root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		ns, err := netns.New()
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// setUp sets interfaces up.
func setUp(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// dropCapabilities drops all capabilities of the calling thread.
func dropCapabilities(t *testing.T) {
	t.Helper()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&h, &none[0]); err != nil {
		t.Error(err)
	}
}

// A reason is what the log says of a kind that auto did not take.
type reason struct{ Msg, NIC, Kind, Err string }

func TestOpenInterface(t *testing.T) {
	const (
		noZeroCopy = "zero-copy is not offered"
		noDriver   = "driver does not offer native XDP"
		portInUse  = "UDP port 4791 of v0 is in use"
	)
	for _, c := range []struct {
		name   string
		nic    string
		down   bool
		user   bool     // without capabilities
		held   bool     // another NIC has the interface
		link   string   // "" for an error
		links  int      // 0 for 1
		logged []string // parts of the reasons, of xdp, packet and udp
		errs   []string // parts of the error
	}{
		{name: "no zero-copy", nic: "a=auto:v0", link: "packet:v0", logged: []string{noZeroCopy}},
		{name: "no driver", nic: "a=auto:lo", link: "packet:lo", logged: []string{noDriver}},
		{name: "down", nic: "a=auto:v0", down: true, link: "packet:v0", logged: []string{noZeroCopy}},
		{name: "two engines", nic: "a=auto:v0,engines=2", link: "packet:v0", links: 2, logged: []string{noZeroCopy}},
		{name: "user", nic: "a=auto:v0", user: true, link: "udp:v0", logged: []string{"CAP_BPF", "CAP_NET_RAW"}},
		{name: "user, two engines", nic: "a=auto:v0,engines=2", user: true, link: "udp:v0", links: 2, logged: []string{"CAP_BPF", "CAP_NET_RAW"}},
		{name: "in use", nic: "a=auto:v0", held: true, logged: []string{portInUse, portInUse, portInUse},
			errs: []string{"xdp link on v0: " + portInUse, "packet link on v0: " + portInUse, "udp link on v0: " + portInUse}},
		{name: "in use, two engines", nic: "a=auto:v0,engines=2", held: true, logged: []string{portInUse, portInUse, portInUse},
			errs: []string{"xdp link on v0: " + portInUse, "packet link on v0: " + portInUse, "udp link on v0: " + portInUse}},
		{name: "no interface", nic: "a=auto:v9", errs: []string{"interface v9", "have: lo"}},

		{name: "packet", nic: "a=packet:v0", link: "packet:v0"},
		{name: "packet, user", nic: "a=packet:v0", user: true, errs: []string{"CAP_NET_RAW"}},
		{name: "udp", nic: "a=udp:v0", link: "udp:v0"},
		{name: "xdp", nic: "a=xdp:v0", link: "xdp:v0 (native)"},
		{name: "xdp, two engines", nic: "a=xdp:v0,engines=2", link: "xdp:v0 (native)", links: 2},
		{name: "xdp, no driver", nic: "a=xdp:lo", link: "xdp:lo (generic)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNamespace(t, func() {
				setUp(t, "lo")
				if !c.down {
					setUp(t, "v0", "v1")
				}
				if c.held {
					links, iface, err := NIC{Name: "holder", Kind: UDP, Interface: "v0"}.OpenInterface(slog.Default())
					if err != nil {
						t.Error(err)
						return
					}
					defer closeAll(links, iface)
				}
				if c.user {
					dropCapabilities(t)
				}
				n, err := Parse(c.nic)
				if err != nil {
					t.Error(err)
					return
				}
				var text bytes.Buffer
				links, iface, err := n.OpenInterface(slog.New(slog.NewJSONHandler(&text, nil)))
				checkReasons(t, &text, c.logged)
				if err != nil {
					for _, e := range c.errs {
						if !strings.Contains(err.Error(), e) {
							t.Errorf("error %v, want %q in it", err, e)
						}
					}
					if c.link != "" {
						t.Errorf("error %v, want %s", err, c.link)
					}
					return
				}
				defer closeAll(links, iface)
				if len(links) != max(c.links, 1) {
					t.Errorf("%d links, want %d", len(links), max(c.links, 1))
				}
				for _, l := range links {
					if got := n.LinkName(l); got != c.link {
						t.Errorf("opened %s, want %q", got, c.link)
					}
				}
			})
		})
	}
}

// The driver of a veth interface offers native mode even while that is down. Others do not.
func TestNameOfXDPLinkThatHasNoMode(t *testing.T) {
	n := NIC{Kind: Auto, Interface: "v0"}
	if got := n.LinkName(&wire.XDPLink{}); got != "xdp:v0" {
		t.Errorf("the name is %q, want xdp:v0", got)
	}
}

// checkReasons checks what the log says of xdp, packet and udp, in this order.
func checkReasons(t *testing.T, log *bytes.Buffer, want []string) {
	t.Helper()
	var got []reason
	for d := json.NewDecoder(log); d.More(); {
		var r reason
		if err := d.Decode(&r); err != nil {
			t.Error(err)
			return
		}
		got = append(got, r)
	}
	if len(got) != len(want) {
		t.Errorf("%d reasons in the log, want %d: %+v", len(got), len(want), got)
		return
	}
	for i, kind := range []Kind{XDP, Packet, UDP}[:len(got)] {
		if r := got[i]; r.Msg != "link not available" || r.NIC != "a" || r.Kind != string(kind) || !strings.Contains(r.Err, want[i]) {
			t.Errorf("the log has %+v, want kind %s and %q", r, kind, want[i])
		}
	}
}

func closeAll(links []wire.Link, iface *wire.Netdev) {
	for _, l := range links {
		l.Close()
	}
	iface.Close()
}
