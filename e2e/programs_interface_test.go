package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/verbs"
)

// A program goes on when the interface of its NIC has changed, and ends with an error when that is
// deleted. A new interface of the same name serves the next program. The client's NIC has one
// engine, the server's two.
func TestProgramsWhoseInterfaceChanges(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	for _, link := range []string{"packet", "udp", "xdp"} {
		t.Run(link, func(t *testing.T) { testInterfaceChanges(t, link) })
	}
}

// An interfaceChange is what happens to one of two interfaces. The placeholder %d is its number.
type interfaceChange struct {
	change, undo string
	shown        func(verbs.PortAttr, []verbs.GIDEntry) bool // by the NIC
}

var interfaceChanges = []interfaceChange{
	{"link set rdma0 down", "link set rdma0 up", func(p verbs.PortAttr, _ []verbs.GIDEntry) bool { return p.State != verbs.PortActive }},
	{"link set rdma0 mtu 1500", "link set rdma0 mtu 5000", func(p verbs.PortAttr, _ []verbs.GIDEntry) bool { return p.ActiveMTU == verbs.MTU1024 }},
	{"addr del 10.78.9.%d/24 dev rdma0", "addr add 10.78.9.%d/24 dev rdma0", func(_ verbs.PortAttr, gids []verbs.GIDEntry) bool {
		return !slices.ContainsFunc(gids, func(g verbs.GIDEntry) bool { return g.GID.Addr().Is4() })
	}},
	{change: "link set rdma0 address 02:00:00:00:00:0%d"},
}

func testInterfaceChanges(t *testing.T, link string) {
	namespaces := harness.VethNamespaces(t)
	var endpoints [2]harness.Endpoint
	var nics [2]*verbs.Context
	for i, ns := range namespaces {
		socket := harness.DaemonIn(t, ns, "--nic", fmt.Sprintf("nic0=%s:rdma0,engines=%d", link, i+1))
		endpoints[i] = harness.OnDaemon(ns, socket, harness.Endpoint{Device: "nic0", Host: fmt.Sprint("10.78.9.", i+1)})
		var err error
		if nics[i], err = verbs.Open(t.Context(), "nic0", verbs.WithSocket(socket)); err != nil {
			t.Fatal(err)
		}
		defer nics[i].Close()
	}
	client, server := endpoints[0], endpoints[1]
	ip := func(i int, command string) {
		t.Helper()
		command = strings.ReplaceAll(command, "%d", fmt.Sprint(i+1))
		harness.RunCommand(t, "ip", append([]string{"-n", namespaces[i]}, strings.Fields(command)...)...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	library, err := client.PerftestLibrary()
	if err != nil {
		t.Fatal(err)
	}
	gid := func(e harness.Endpoint) int { return harness.GIDs(t, e.Socket, e.Device)[false] }
	gids := map[string]int{client.Socket: gid(client), server.Socket: gid(server)}
	// start starts ib_write_bw with these options on both NICs, and returns the client's.
	start := func(ctx context.Context, options string) *harness.Job {
		t.Helper()
		port := harness.FreePort()
		command := func(e harness.Endpoint) string {
			return fmt.Sprintf("ib_write_bw -d nic0 -x %d -F -q 4 -p %d %s", gids[e.Socket], port, options)
		}
		job := server.Start(ctx, t, command(server), "LD_PRELOAD="+library)
		if err := server.WaitListening(ctx, job, port); err != nil {
			t.Fatalf("%v: %s", err, job.Output())
		}
		return client.Start(ctx, t, command(client)+" "+server.Host, "LD_PRELOAD="+library)
	}

	running, stop := context.WithCancel(ctx)
	defer stop()
	job := start(running, "-D 300 -u 16")
	awaitPackets(t, client, job, "at the beginning")
	for _, c := range interfaceChanges {
		for i, nic := range nics {
			ip(i, c.change)
			if c.undo != "" {
				awaitShown(t, nic, c)
				ip(i, c.undo)
			}
			awaitPackets(t, client, job, fmt.Sprintf("after %q on interface %d", c.change, i+1))
		}
	}
	stop()
	job.Wait()

	job = start(ctx, "-D 300 -u 12")
	awaitPackets(t, client, job, "before the interface is deleted")
	ip(0, "link del rdma0")
	if out, err := job.Wait(); err == nil || !strings.Contains(out, "Failed status 12") {
		t.Fatalf("the interface was deleted, and the client ended with %v: %s", err, out)
	}
	harness.ConnectNamespaces(t, namespaces)
	gids = map[string]int{client.Socket: gid(client), server.Socket: gid(server)}
	if out, err := start(ctx, "-n 100 -u 16").Wait(); err != nil || !perftestResult.MatchString(out) {
		t.Errorf("on the new interface: %v: %s", err, out)
	}
}

// awaitShown waits until a NIC shows a change.
func awaitShown(t *testing.T, nic *verbs.Context, c interfaceChange) {
	t.Helper()
	for limit := time.Now().Add(harness.StartLimit); ; time.Sleep(5 * time.Millisecond) {
		port, err := nic.QueryPort(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		gids, err := nic.GIDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.shown(port, gids) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("after %q: %+v, GIDs %v", c.change, port, gids)
		}
	}
}
