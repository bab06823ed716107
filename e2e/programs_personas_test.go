package e2e

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// realpathOfNIC is what libraries do to find the PCI device of a NIC: they resolve its directory of
// sysfs, and read attributes beside and above it.
const realpathOfNIC = `
import os
nic = os.path.realpath('/sys/class/infiniband/mlx5_1')
pci = os.path.realpath('/sys/class/infiniband/mlx5_1/device')
assert nic == pci + '/infiniband/mlx5_1', (nic, pci)
read = lambda path: open(path).read().strip()
print(os.path.basename(pci), read(pci + '/vendor'), read(pci + '/../' + os.path.basename(pci) + '/device'),
      read('/sys/bus/pci/devices/' + os.path.basename(pci) + '/numa_node'), os.path.basename(os.readlink(pci + '/driver')))
`

// TestPersonas runs the programs that look for NICs on one with a persona.
func TestPersonas(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	for _, name := range []string{"ibv_devinfo", "ibstat", "ucx_info", "fi_info", "NPopenmpi"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "personas")
	socket := harness.DaemonIn(t, ns, "--nic", "rdma0=fabric:192.0.2.1", "--nic", "mlx5_1=fabric:192.0.2.2,persona=connectx-7,numa=3")
	run := func(command ...string) (string, error) {
		argv := []string{harness.Binary(t), "run", "-q", "--socket", socket, "--"}
		out, err := harness.InNamespace(ns)(t.Context(), append(argv, command...)...).CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct {
		command []string
		want    []string
	}{
		{strings.Fields("ibv_devinfo -v -d mlx5_1"), []string{"vendor_id:\t\t\t0x02c9", "vendor_part_id:\t\t\t4129", "fw_ver:\t\t\t\t28.39.1002", "board_id:\t\t\tMT_0000000838", "active_speed:\t\t100.0 Gbps (128)",
			"GID[  2]:\t\t0000:0000:0000:0000:0000:ffff:c000:0202, RoCE v1\n", "GID[  3]:\t\t::ffff:192.0.2.2, RoCE v2\n"}},
		{strings.Fields("ibstat mlx5_1"), []string{"CA type: MT4129", "Firmware version: 28.39.1002", "Rate: 400"}},
		{strings.Fields("ucx_info -d"), []string{"System device: mlx5_1 (0)"}},
		{strings.Fields("fi_info -p verbs -v"), []string{"device_id: 0x1021", "firmware: 28.39.1002"}},
		{strings.Fields("mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=mlx5_1:1 " +
			"NPopenmpi -n 5 -p 0 -l 64 -u 64 -o /dev/null"), []string{"Mbps"}},
		{[]string{"python3", "-c", realpathOfNIC}, []string{"50ce:01:00.0 0x15b3 0x1021 3 mlx5_core"}},
	} {
		out, err := run(c.command...)
		if err != nil {
			t.Errorf("%q: %v", c.command, err)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q does not print %q:\n%s", c.command, want, out)
			}
		}
	}
	for _, rate := range []string{"40", "7"} {
		if out, err := run("cat", "/sys/kernel/debug/mlx5/50ce:01:00.0/cc_params/rp_ai_rate"); out != rate+"\n" {
			t.Errorf("rp_ai_rate is %q (%v), want %s", out, err, rate)
		}
		harness.RunCommand(t, harness.Binary(t), "congestion", "--socket", socket, "mlx5_1", "rp_ai_rate=7")
		time.Sleep(100 * time.Millisecond) // the files count as current for half of that
	}
	if out, err := run("cat", "/sys/class/infiniband/rdma0/device/vendor"); out != "0xffff\n" {
		t.Errorf("the NIC without a persona has vendor %q (%v)", out, err)
	}
}

// eightNICs are those of a host with two NUMA nodes.
const eightNICs = "mlx5_[0-7]=fabric:10.1.[1-8].1,persona=connectx-7,numa=[0,0,0,0,1,1,1,1]"

// TestCollectiveLibrariesFindNICs runs a program with the calls of the network plugins of
// collective communication libraries, in their order.
func TestCollectiveLibrariesFindNICs(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.NeedPrograms(t)
	ns := harness.Namespace(t, "collectives")
	socket := harness.DaemonIn(t, ns, append(harness.Judged(t, 1, 2), "--nic", eightNICs)...)
	program := filepath.Join(t.TempDir(), "collectives")
	harness.RunCommand(t, "gcc", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/collectives.c", "-ldl")
	out, err := harness.InNamespace(ns)(t.Context(), harness.Binary(t), "run", "-q", "--socket", socket, "--", program).CombinedOutput()
	var want strings.Builder
	for i := range 8 {
		fmt.Fprintf(&want, "mlx5_%d pci 50ce:%02x:00.0 class 0x020000 vendor 0x15b3 device 0x1021 numa %d slot 32.0 GT/s PCIe x16 "+
			"ports 1 state active layer ethernet speed 128 width 2 part 4129 gid 3\n", i, i, i/4)
	}
	want.WriteString("transferred 512 bytes\n")
	if err != nil || string(out) != want.String() {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want.String())
	}
}

// TestNodeExporterReadsNICs lets the exporter of Prometheus, which does not use the C library, read
// the files that softroce sysfs names. It exports what the daemon itself exports under these names,
// and 0 for what softroce does not count.
func TestNodeExporterReadsNICs(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	exporter := nodeExporter(t)
	ns := harness.Namespace(t, "exporter")
	in := harness.InNamespace(ns)
	socket := harness.DaemonIn(t, ns, "--metrics", "127.0.0.1:9100", "--nic", eightNICs)
	softroce := func(command ...string) *exec.Cmd {
		return in(t.Context(), append([]string{harness.Binary(t), "--socket", socket}, command...)...)
	}
	follow := softroce("sysfs", "--watch")
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { follow.Process.Kill(); follow.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	harness.StartJob(t, in(t.Context(), exporter, "--collector.disable-defaults", "--collector.infiniband",
		"--path.sysfs="+strings.TrimSpace(line), "--web.listen-address=127.0.0.1:9101"))
	for counter, value := range map[string]string{"link_downed": "7", "port_xmit_bytes": "400", "port_rcv_packets": "12", "port_xmit_discards": "3"} {
		if out, err := softroce("counters", "set", "mlx5_3", counter, value).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if out, err := softroce("link", "mlx5_5", "down").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	scrape := func(port int) (l []string) {
		const get = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
		out, _ := in(t.Context(), "python3", "-c", get, fmt.Sprintf("http://127.0.0.1:%d/metrics", port)).Output()
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "node_infiniband_") {
				l = append(l, line)
			}
		}
		return l
	}
	own := scrape(9100)
	var got []string
	limit := time.Now().Add(harness.ProgramLimit)
	for !slices.Contains(got, "node_infiniband_state_id{device=\"mlx5_5\",port=\"1\"} 1\n") || // the files may not be updated yet
		!slices.Contains(got, "node_infiniband_port_discards_transmitted_total{device=\"mlx5_3\",port=\"1\"} 3\n") {
		if time.Now().After(limit) {
			t.Fatalf("the exporter prints\n%s", strings.Join(got, ""))
		}
		time.Sleep(100 * time.Millisecond)
		got = scrape(9101)
	}
	names := map[string]bool{}
	for _, line := range got {
		name, _, _ := strings.Cut(line, "{")
		names[name] = true
		counted := slices.ContainsFunc(own, func(l string) bool { return strings.HasPrefix(l, name+"{") })
		if counted && !slices.Contains(own, line) || !counted && !strings.HasSuffix(line, "} 0\n") {
			t.Errorf("the daemon does not export %s", line)
		}
	}
	if len(names) < 10 {
		t.Errorf("the exporter has only %d metrics: %v", len(names), slices.Sorted(maps.Keys(names)))
	}
}

// nodeExporter returns the path of the exporter. Its package would start a service, so it is
// unpacked and not installed.
func nodeExporter(t *testing.T) string {
	const name = "prometheus-node-exporter"
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	dir := t.TempDir()
	download := func() error {
		cmd := exec.CommandContext(t.Context(), "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name)
		cmd.Dir = dir
		return cmd.Run()
	}
	if download() != nil {
		exec.CommandContext(t.Context(), "apt-get", "update", "-q").Run()
		if err := download(); err != nil {
			if os.Getenv("CI") == "" {
				t.Skipf("%s cannot be downloaded: %v", name, err)
			}
			t.Fatal(err)
		}
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages %v, %v", packages, err)
	}
	harness.RunCommand(t, "dpkg-deb", "-x", packages[0], dir)
	return filepath.Join(dir, "usr/bin", name)
}
