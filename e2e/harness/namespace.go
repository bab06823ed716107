package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// namespacePrefixes begin the names of the namespaces that tests create, and the first one those of
// directories. The process ID follows, so that a later run can remove them.
var namespacePrefixes = []string{"softroce-e2e-", "softroce-cable-"}

// Namespace creates a network namespace whose loopback interface is up, and returns its name.
func Namespace(t *testing.T, name string) string {
	t.Helper()
	name = fmt.Sprintf("%s%d-%s", namespacePrefixes[0], os.Getpid(), name)
	RunCommand(t, "ip", "netns", "add", name)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	RunCommand(t, "ip", "-n", name, "link", "set", "lo", "up")
	// Link-local addresses are usable at once, without seconds of duplicate address detection.
	RunCommand(t, "ip", "netns", "exec", name, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
	return name
}

// VethNamespaces creates two network namespaces, connected by the interface rdma0 in each.
func VethNamespaces(t *testing.T) (names [2]string) {
	t.Helper()
	for i := range names {
		names[i] = Namespace(t, fmt.Sprint(i))
	}
	ConnectNamespaces(t, names)
	return names
}

// ConnectNamespaces creates the interface rdma0 in two namespaces, the ends of a veth pair.
func ConnectNamespaces(t *testing.T, names [2]string) {
	t.Helper()
	RunCommand(t, "ip", "link", "add", "rdma0", "netns", names[0], "mtu", "5000",
		"type", "veth", "peer", "name", "rdma0", "netns", names[1], "mtu", "5000")
	for i, ns := range names {
		RunCommand(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.78.9.%d/24", i+1), "dev", "rdma0")
		RunCommand(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("fd00:78:9::%d/64", i+1), "dev", "rdma0", "nodad")
		RunCommand(t, "ip", "-n", ns, "link", "set", "rdma0", "up")
	}
}

// InNamespace returns a function that prepares a command in a network namespace.
func InNamespace(ns string) func(ctx context.Context, argv ...string) *exec.Cmd {
	return func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns}, argv...)...)
	}
}

// A VethLink is a veth pair between two namespaces that have nothing else.
type VethLink struct {
	Namespaces [2]string
	Interface  string // its name in both
}

// NewVethLink creates a link whose ends have addresses of 10.79.8.0/24.
func NewVethLink(t *testing.T) *VethLink {
	t.Helper()
	NeedRoot(t, "network namespaces")
	l := &VethLink{Interface: "v0"}
	for i := range l.Namespaces {
		l.Namespaces[i] = fmt.Sprintf("%s%d-%c", namespacePrefixes[1], os.Getpid(), 'a'+i)
		RunCommand(t, "ip", "netns", "add", l.Namespaces[i])
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", l.Namespaces[i]).CombinedOutput(); err != nil {
				t.Errorf("ip netns del: %v: %s", err, out)
			}
		})
	}
	RunCommand(t, "ip", "-n", l.Namespaces[0], "link", "add", l.Interface, "mtu", "9000",
		"type", "veth", "peer", "name", l.Interface, "mtu", "9000", "netns", l.Namespaces[1])
	for i, ns := range l.Namespaces {
		RunCommand(t, "ip", "-n", ns, "link", "set", "lo", "up")
		RunCommand(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.79.8.%d/24", i+1), "dev", l.Interface)
		RunCommand(t, "ip", "-n", ns, "link", "set", l.Interface, "up")
	}
	return l
}

// In prepares a command at one end of the link, 0 or 1.
func (l *VethLink) In(end int) func(ctx context.Context, argv ...string) *exec.Cmd {
	return InNamespace(l.Namespaces[end])
}
