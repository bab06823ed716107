package sysfs

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
)

func example() Device {
	return Device{
		Name: "softroce3", Index: 3,
		Attr:  nic.DeviceAttr{NodeGUID: 0x0102030405060708, SysImageGUID: 0x0102030405060708, FWVer: "1.0.0", VendorID: 0xffffff},
		Port:  nic.PortAttr{State: ib.PortActive, PhysState: ib.PhysLinkUp, Netdev: "eth7", GIDTableLen: 4},
		GIDs:  []nic.GIDEntry{{Index: 0, GID: nic.GID{0xfe, 0x80}, Netdev: "eth7", RoCEv1: true}, {Index: 2, GID: nic.GID{0xfe, 0x81}}},
		PKeys: []uint16{0xffff},
	}
}

// A device with a persona has a PCI device, on which each link ends at an existing file.
func TestRenderOfAPersona(t *testing.T) {
	d := example()
	d.Identity = nic.Identity{
		HCAType: "MT4129", BoardID: "MT_0000000838", NodeDesc: "host HCA-1",
		PCI: &nic.PCI{Vendor: 0x15b3, Device: 0x1021, Class: 0x20000, Driver: "mlx5_core", NUMANode: 1, LinkSpeed: "32.0 GT/s PCIe", LinkWidth: 16},
	}
	d.Port.ActiveSpeed, d.Port.ActiveWidth = ib.SpeedNDR, ib.Width4X
	d.Congestion = []congestion.Value{{Name: "rp_ai_rate", Value: 5}, {Name: "swift_beta", Value: 819}}
	var tree Tree
	dir, err := tree.Open(func() []File { return Render(&d) })
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	defer dir.Close()
	const dev = "sys/class/infiniband/softroce3/"
	for path, text := range map[string]string{
		dev + "hca_type":     "MT4129\n",
		dev + "board_id":     "MT_0000000838\n",
		dev + "node_desc":    "host HCA-1\n",
		dev + "ports/1/rate": "400 Gb/sec (4X NDR)\n",

		dev + "device/vendor":                                    "0x15b3\n",
		dev + "device/class":                                     "0x020000\n",
		dev + "device/infiniband/softroce3/fw_ver":               "1.0.0\n",
		dev + "device/infiniband_verbs/uverbs3/ibdev":            "softroce3\n",
		dev + "device/subsystem/devices/50ce:03:00.0/device":     "0x1021\n",
		dev + "device/driver/50ce:03:00.0/current_link_width":    "16\n",
		"sys/class/infiniband_verbs/uverbs3/device/numa_node":    "1\n",
		"sys/devices/pci50ce:03/50ce:03:00.0/current_link_speed": "32.0 GT/s PCIe\n",

		"sys/kernel/debug/mlx5/50ce:03:00.0/cc_params/rp_ai_rate": "5\n",
		"sys/kernel/debug/mlx5/50ce:03:00.0/cc_params/swift_beta": "no such file or directory",
		"sys/kernel/debug/mlx5/50ce:03:00.0/cc_params/burst_time": "no such file or directory",
	} {
		if got := read(t, dir, path); got != text {
			t.Errorf("%s reads %q, want %q", path, got, text)
		}
	}
	for path, want := range map[string]string{
		"sys/class/infiniband/softroce3": "../../devices/pci50ce:03/50ce:03:00.0/infiniband/softroce3", dev + "device": "../../../50ce:03:00.0", dev + "device/net/eth7": "/sys/class/net/eth7"} {
		if got, err := os.Readlink(filepath.Join(dir.Name(), path)); got != want {
			t.Errorf("%s leads to %q (%v), want %q", path, got, err, want)
		}
	}
}

// With the counters of a driver, hw_counters has the driver's files and no others.
func TestHWCountersOfADriver(t *testing.T) {
	for set, want := range map[nic.CounterSet]string{
		nic.CountersMLX5: "rx_write_requests=0 rx_read_requests=0 rx_atomic_requests=0 out_of_buffer=3 out_of_sequence=0 duplicate_request=2 " +
			"rnr_nak_retry_err=0 packet_seq_err=0 implied_nak_seq_err=0 local_ack_timeout_err=5 resp_local_length_error=0 resp_cqe_error=0 " +
			"req_cqe_error=0 req_remote_invalid_request=0 req_remote_access_errors=0 resp_remote_access_errors=0 resp_cqe_flush_error=0 " +
			"req_cqe_flush_error=0 roce_adp_retrans=0 roce_adp_retrans_to=0 roce_slow_restart=0 roce_slow_restart_cnps=0 " +
			"roce_slow_restart_trans=0 rp_cnp_ignored=7 rp_cnp_handled=0 np_ecn_marked_roce_packets=8 np_cnp_sent=0 rx_icrc_encapsulated=0 lifespan=50",
		nic.CountersRXE: "sent_pkts=100 rcvd_pkts=0 duplicate_request=2 out_of_seq_request=0 rcvd_rnr_err=0 send_rnr_err=0 rcvd_seq_err=0 " +
			"ack_deferred=0 retry_exceeded_err=0 retry_rnr_exceeded_err=0 completer_retry_err=6 send_err=15 link_downed=4 rdma_sends=9 " +
			"rdma_recvs=0 lifespan=50",
	} {
		d := example()
		d.Identity.CounterSet = set
		c := &d.Counters
		c.DuplicateRequest, c.OutOfBuffer, c.LinkDowned, c.LocalACKTimeout, c.Retries, c.RxECNMarked, c.TxSendRequests = 2, 3, 4, 5, 6, 8, 9
		c.Drops[transport.DropCNP] = 7
		c.Link.TxPackets = 100
		c.Link.Drops[wire.DropSend], c.Link.Drops[wire.DropTooLong], c.Link.Drops[wire.DropUnreachable], c.TxStalled = 1, 2, 4, 8
		var got, ports []string
		for _, f := range Render(&d) {
			if name, ok := strings.CutPrefix(f.Path, "sys/class/infiniband/softroce3/ports/1/counters/"); ok {
				ports = append(ports, name+"="+strings.TrimSuffix(f.Text, "\n"))
			}
			if name, ok := strings.CutPrefix(f.Path, "sys/class/infiniband/softroce3/ports/1/hw_counters/"); ok {
				got = append(got, name+"="+strings.TrimSuffix(f.Text, "\n"))
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s\nwant %s", set, s, want)
		}
		wantPorts := "port_xmit_data=0 port_rcv_data=0 port_xmit_packets=100 port_rcv_packets=0"
		if set == nic.CountersMLX5 {
			wantPorts += " symbol_error=0 link_error_recovery=0 link_downed=4 port_rcv_errors=0 port_rcv_remote_physical_errors=0 " +
				"port_rcv_switch_relay_errors=0 port_xmit_discards=15 port_xmit_constraint_errors=0 port_rcv_constraint_errors=0 " +
				"local_link_integrity_errors=0 excessive_buffer_overrun_errors=0 VL15_dropped=0 port_xmit_wait=0"
		}
		if s := strings.Join(ports, " "); s != wantPorts {
			t.Errorf("%s: %s\nwant %s", set, s, wantPorts)
		}
	}
}

func TestRenderHasTheKernelsFiles(t *testing.T) {
	got := map[string]File{}
	d := example()
	d.Counters.Link.TxBytes, d.Counters.Link.RxBytes = 400, 800
	d.Counters.RxSendRequests = 7
	d.Counters.Shift = map[string]uint64{"port_rcv_bytes": 40}
	for _, f := range append(Render(&d), CommonFiles()...) {
		if _, twice := got[f.Path]; twice {
			t.Errorf("%s is listed twice", f.Path)
		}
		got[f.Path] = f
	}
	const dev = "sys/class/infiniband/softroce3/"
	for path, text := range map[string]string{
		"dev/infiniband/uverbs3":                     "",
		"dev/infiniband/rdma_cm":                     "",
		"sys/class/infiniband_verbs/uverbs3/ibdev":   "softroce3\n",
		"sys/class/infiniband_verbs/uverbs3/dev":     "231:195\n",
		"sys/class/infiniband_verbs/abi_version":     "6\n",
		dev + "node_guid":                            "0102:0304:0506:0708\n",
		dev + "node_type":                            "1: CA\n",
		dev + "fw_ver":                               "1.0.0\n",
		dev + "ports/1/state":                        "4: ACTIVE\n",
		dev + "ports/1/phys_state":                   "5: LinkUp\n",
		dev + "ports/1/link_layer":                   "Ethernet\n",
		dev + "ports/1/pkeys/0":                      "0xffff\n",
		dev + "ports/1/gids/0":                       "fe80:0000:0000:0000:0000:0000:0000:0000\n",
		dev + "ports/1/gids/1":                       "0000:0000:0000:0000:0000:0000:0000:0000\n",
		dev + "ports/1/gids/3":                       "0000:0000:0000:0000:0000:0000:0000:0000\n",
		dev + "ports/1/gid_attrs/types/0":            "IB/RoCE v1\n",
		dev + "ports/1/gid_attrs/types/1":            "",
		dev + "ports/1/gid_attrs/types/3":            "",
		dev + "ports/1/gid_attrs/ndevs/2":            "", // a fabric has no network interface
		dev + "ports/1/gid_attrs/ndevs/3":            "",
		dev + "ports/1/gid_attrs/types/2":            "RoCE v2\n",
		dev + "ports/1/gid_attrs/ndevs/0":            "eth7\n",
		dev + "ports/1/counters/port_xmit_data":      "100\n",
		dev + "ports/1/counters/port_rcv_data":       "210\n",
		dev + "ports/1/hw_counters/rx_send_requests": "7\n",
	} {
		if f, ok := got[path]; !ok || f.Text != text || f.Link {
			t.Errorf("%s is %q (%t), want %q", path, f.Text, ok, text)
		}
	}
	for _, path := range []string{dev + "ports/1/gids/4", dev + "ports/1/gid_attrs/types/4", dev + "ports/1/gid_attrs/ndevs/4"} {
		if _, ok := got[path]; ok {
			t.Errorf("%s exists", path)
		}
	}
	if f := got[dev+"device/net/eth7"]; !f.Link || f.Text != "/sys/class/net/eth7" {
		t.Errorf("device/net/eth7 is %+v, want a link to the interface", f)
	}
}

// read reads a file below an open directory.
func read(t *testing.T, dir *os.File, name string) string {
	t.Helper()
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOpenUpdatesFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var tree Tree
	files := func(files ...File) func() []File { return func() []File { return files } }
	dir, err := tree.Open(files(File{Path: "sys/a", Text: "1"}, File{Path: "sys/sub/b", Text: "2"}, File{Path: "sys/l", Text: "/nowhere", Link: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if got := read(t, dir, "sys/a") + read(t, dir, "sys/sub/b"); got != "12" {
		t.Errorf("the files read %q", got)
	}
	if to, err := os.Readlink(filepath.Join(dir.Name(), "sys/l")); err != nil || to != "/nowhere" {
		t.Errorf("the link points to %q, %v", to, err)
	}
	again, err := tree.Open(func() []File { t.Error("files was called again within maxAge"); return nil })
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	tree.updated = tree.updated.Add(-2 * maxAge)
	again, err = tree.Open(files(File{Path: "sys/a", Text: "changed"}))
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if got := read(t, dir, "sys/a"); got != "changed" {
		t.Errorf("the open directory reads %q", got)
	}
	if got := read(t, dir, "sys/sub/b"); got != unix.ENOENT.Error() {
		t.Errorf("a removed file reads %q", got)
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir.Name()); !os.IsNotExist(err) {
		t.Errorf("stat after Close: %v", err)
	}
	if _, err := tree.Open(files()); err == nil {
		t.Error("Open of a closed tree succeeded")
	}
}

func TestOpenRestoresRemovedFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var tree Tree
	open := func() *os.File {
		t.Helper()
		tree.updated = tree.updated.Add(-2 * maxAge)
		dir, err := tree.Open(func() []File { return []File{{Path: "sys/a", Text: "1"}, {Path: "sys/sub/b", Text: "2"}} })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		return dir
	}
	first := open()
	if err := os.Remove(filepath.Join(first.Name(), "sys/sub/b")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(), "sys/sub/b"); got != "2" {
		t.Errorf("a file that was removed reads %q", got)
	}
	if err := os.RemoveAll(first.Name()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, open(), "sys/a"); got != "1" {
		t.Errorf("after the directory was removed, a file reads %q", got)
	}
	// If another process takes the name, its directory is neither written nor removed.
	taken := tree.dir
	if err := os.RemoveAll(taken); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(taken, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	second := open()
	if second.Name() == taken {
		t.Error("the directory of another process was opened")
	}
	if err := os.RemoveAll(second.Name()); err != nil {
		t.Fatal(err)
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := os.ReadDir(filepath.Join(taken, "sys")); err != nil || len(l) != 0 {
		t.Errorf("the directory of another process: %v, %v", l, err)
	}
}
