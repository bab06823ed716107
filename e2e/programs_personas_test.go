package e2e

import (
	"os/exec"
	"strings"
	"testing"

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
	for _, name := range []string{"ibv_devinfo", "ibstat", "ucx_info", "fi_info"} {
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
	if out, err := run("cat", "/sys/class/infiniband/rdma0/device/vendor"); out != "0xffff\n" {
		t.Errorf("the NIC without a persona has vendor %q (%v)", out, err)
	}
}
