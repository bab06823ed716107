package persona

import (
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
)

func TestPresets(t *testing.T) {
	names := Names()
	if len(names) == 0 {
		t.Fatal("there are no presets")
	}
	for _, name := range names {
		p, err := Load(name)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := Text(name)
		if err != nil || !strings.Contains(string(text), "\nsources:\n  - https://") {
			t.Errorf("%s names no source (%v)", name, err)
		}
		if p.Identity.VendorID == 0 {
			t.Errorf("%s has no vendor", name)
		}
	}
}

func TestParse(t *testing.T) {
	p, err := Parse([]byte(`
vendor_id: 0x02c9
vendor_part_id: 4129
fw_ver: 28.39.1002
active_speed: NDR
active_width: 2
limits: {max_qp: 1000, max_cq: 16777216}
hide: [max_cq, xrc, atomics]
vendor_err: {RETRY_EXC_ERR: 0x81}
hw_counters: mlx5_ib
roce_v1_gids: true
pci: {vendor: 0x15b3, device: 0x1021, driver: mlx5_core, numa_node: 1, local_cpulist: "0-3,8"}
`))
	if err != nil {
		t.Fatal(err)
	}
	i := p.Identity
	if i.VendorID != 0x2c9 || i.VendorPartID != 4129 || i.FWVer != "28.39.1002" || i.ActiveSpeed.String() != "NDR" || i.ActiveWidth.Lanes() != 2 {
		t.Errorf("identity %+v", i)
	}
	if len(i.VendorErrs) != 1 || i.VendorErrs[ib.WCRetryExcErr] != 0x81 {
		t.Errorf("vendor_err %v", i.VendorErrs)
	}
	if i.CounterSet != nic.CountersMLX5 || i.RoCEv1GIDs != nic.RoCEv1GIDsBefore {
		t.Errorf("counters of %q, GIDs of RoCE v1 %d", i.CounterSet, i.RoCEv1GIDs)
	}
	if i.Hidden != nic.CapXRC|nic.CapAtomics {
		t.Errorf("hidden features %b", i.Hidden)
	}
	if want := (nic.Limits{MaxQP: 1000, MaxCQ: nic.DefaultLimits.MaxCQ}); p.Limits != want {
		t.Errorf("limits %+v, want %+v", p.Limits, want)
	}
	want := nic.PCI{Vendor: 0x15b3, Device: 0x1021, Class: 0x20000, Driver: "mlx5_core", NUMANode: 1, LocalCPUs: "0-3,8", LinkSpeed: "16.0 GT/s PCIe", LinkWidth: 16}
	if *i.PCI != want {
		t.Errorf("PCI %+v, want %+v", *i.PCI, want)
	}
}

// What a persona promises beyond the engine is kept as far as the engine can.
func TestHiddenLimits(t *testing.T) {
	for _, c := range []struct {
		text string
		want nic.Limits
	}{
		{"limits: {max_mr_size: 0xffffffffffffffff}\nhide: [max_mr_size]", nic.Limits{MaxMRSize: 1<<63 - 1}},
		{"limits: {max_mr_size: 0x200000000000}", nic.Limits{MaxMRSize: 1 << 45}},
		{"limits: {page_size_cap: 0xfffffffffffff000}\nhide: [page_size_cap]", nic.Limits{PageSizes: 0xfffff000}},
		{"limits: {page_size_cap: 0x40201000}", nic.Limits{PageSizes: 0x40201000}},
		{"limits: {local_ca_ack_delay: 4}\nhide: [local_ca_ack_delay]", nic.Limits{LocalACKDelay: 15}},
		{"limits: {local_ca_ack_delay: 16}", nic.Limits{LocalACKDelay: 16}},
	} {
		p, err := Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
		} else if p.Limits != c.want {
			t.Errorf("%s: limits %+v, want %+v", c.text, p.Limits, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"vendor: 3", `line 1: key "vendor" is unknown here`},
		{"fw_ver: 1\nlimitss: {max_qp: 3}", `line 2: key "limitss" is unknown here; did you mean "limits"?`},
		{"ports: 1\n---\nports: 2", "want one YAML document"},
		{"limits: {max_qp: 3.5}", `line 1: "3.5": want a whole number`},
		{"limits: {max_qp: 99999999999}", "max_qp is 99999999999, and softroce has at most 1048576"},
		{"limits: {max_qp: 18446744073709551616}", `line 1: "18446744073709551616": want a whole number`},
		{"limits: {max_qp: -1}", `line 1: "-1": want a whole number`},
		{"vendor_part_id: 0x100000000", `line 1: "0x100000000": want a whole number from 0 to 4294967295`},
		{"active_width: 4.0", `line 1: "4.0": want a whole number`},
		{"ports: 1.5", `line 1: "1.5": want a whole number`},
		{"vendor_err: {RETRY_EXC_ERR: 0x81.8}", "line 1"},
		{"hide: xrc", "line 1: want a list"},
		{"limits: [max_qp]", "line 1: want keys with values"},
		{"vendor_id: x", "line 1"},
		{"vendor_id: [", "line 1"},
		{"fw_ver: " + strings.Repeat("1", 64), "fw_ver"},
		{"node_desc: \"a\\nb\"", "node_desc"},
		{"active_speed: FAST", "want SDR"},
		{"ports: 3", "ports 3: want 1 or 2"},
		{"ports: 0", "ports 0: want 1 or 2"},
		{"active_width: 3", "want 1, 2, 4, 8 or 12"},
		{"limits: {max_qps: 3}", `"max_qps" is not a limit; did you mean "max_qp"?`},
		{"limits: {max_qp: 0}", "want at least 1"},
		{"limits: {max_sge: 1000}", "max_sge is 1000, and softroce has at most 32: list max_sge under hide"},
		{"limits: {max_qp_init_rd_atom: 129}", "max_qp_init_rd_atom is 129, and softroce has at most 128"},
		{"limits: {max_total_mcast_qp_attach: 458753}", "softroce has at most 458752"},
		{"limits: {max_pkeys: 65}", "max_pkeys is 65, and softroce has at most 64"},
		{"limits: {max_mr_size: 0xffffffffffffffff}", "softroce has at most 9223372036854775807: list max_mr_size under hide"},
		{"limits: {max_sge_rd: 33}", "max_sge_rd is 33, and softroce has at most 32"},
		{"limits: {max_res_rd_atom: 134217729}", "softroce has at most 134217728"},
		{"limits: {page_size_cap: 0x100001000}", "page_size_cap is 0x100001000, and softroce has only bits of 0xfffff000: list page_size_cap under hide"},
		{"hide: [page_size_cap]\nlimits: {page_size_cap: 0x100000000}", "page_size_cap is 0x100000000, and softroce has only bits of 0xfffff000"},
		{"limits: {local_ca_ack_delay: 14}", "local_ca_ack_delay is 14, and softroce has at least 15: list local_ca_ack_delay under hide"},
		{"hide: [local_ca_ack_delay]\nlimits: {local_ca_ack_delay: 32}", "local_ca_ack_delay is 32: want at most 31"},
		{"hide: [xrcd]", `"xrcd" is neither a feature nor a limit; did you mean "xrc"?`},
		{"vendor_err: {RETRY_ERR: 1}", `"RETRY_ERR" is not an error of a completion`},
		{"vendor_err: {SUCCESS: 1}", `"SUCCESS" is not an error of a completion (have: `},
		{"vendor_err: {RETRY_EXC_ERR: -1}", "line 1"},
		{"roce_v1_gids: true\nlimits: {gid_tbl_len: 1}", "no room for a RoCE v2 GID"},
		{"hw_counters: mlx5", `"mlx5": want mlx5_ib or rdma_rxe`},
		{"pci: {vendor: 1}", "needs vendor and device"},
		{"pci: {vendor: 1, device: 2}", "driver"},
		{"pci: {vendor: 1, device: 2, driver: ../x}", "driver"},
		{"pci: {vendor: 1, device: 2, driver: x, local_cpulist: a}", "local_cpulist"},
		{"pci: {vendor: 1, device: 2, driver: x, local_cpulist: 9-3}", "local_cpulist"},
		{"pci: {vendor: 1, device: 2, driver: x, local_cpulist: 0-8192}", "local_cpulist"},
		{"pci: {vendor: 1, device: 2, driver: x, numa_node: 1024}", "at most 1023"},
		{"pci: {vendor: 1, device: 2, driver: x, link_speed: fast}", "link_speed"},
		{"pci: {vendor: 1, device: 2, driver: x, link_width: 64}", "link_width"},
		{"pci: {vendor: 1, device: 2, driver: x, numa_node: -2}", "numa_node"},
		{"pci: {vendor: 70000, device: 2}", `line 1: "70000": want a whole number from 0 to 65535`},
	} {
		if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v, want one with %q on one line", c.text, err, c.want)
		}
	}
}

func TestUnknownPersona(t *testing.T) {
	for name, want := range map[string]string{
		"conectx-7": `did you mean "connectx-7"?`, "no/such.yaml": "no such file", "nosuch.yaml": "no such file", "/dev/zero": "larger than",
	} {
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		text, err := Text(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if (p == nil) == (err == nil) {
			t.Errorf("persona %v, error %v", p, err)
		}
	})
}
