package metrics

import (
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
)

// source has a NIC with a value in every kind of counter.
type source struct{}

func (source) Devices() []nic.Snapshot {
	s := nic.Snapshot{
		Name: "nic0", PortState: ib.PortActive,
		Contexts: []nic.ContextInfo{{PDs: 2, RegisteredBytes: 4096, RingBytes: 512}},
		QPs:      []nic.QPInfo{{State: "RTS"}, {State: "RTS"}, {State: "ERR"}},
		MRs:      []nic.MRInfo{{Backing: "process", Unshared: "threads"}}, CQs: []nic.CQInfo{{}}, SRQs: []nic.SRQInfo{{}, {}},
		Faults:   []nic.FaultInfo{{ID: 1, Line: 2, Rule: "drop nth 3", Matched: 9, Acted: 1}, {ID: 5, Line: 2, Rule: "drop nth 3", Matched: 8}},
		Identity: nic.Identity{BoardID: "MT_0000000838", FWVer: "28.39.1002", HCAType: "MT4129", ActiveSpeed: ib.SpeedNDR, ActiveWidth: ib.Width4X},
	}
	c := &s.Counters
	c.LocalACKTimeout, c.RNRSent, c.Retransmitted = 3, 4, 5
	c.NAKSent[2] = 6
	c.RxOpcode[0x11], c.TxOpcode[0xff] = 7, 8
	c.Drop(transport.DropICRC)
	c.Link.TxBytes = 1000
	return []nic.Snapshot{s}
}

func (source) Engines() []nic.EngineCounters {
	return []nic.EngineCounters{{Steps: 9, Busy: 1e9, Idle: 1e9, Asleep: 2e9}}
}

func TestHandlerExportsAllMetrics(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(source{}, "1.2").ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`softroce_build_info{version="1.2"} 1`,
		`node_infiniband_info{board_id="MT_0000000838",device="nic0",firmware_version="28.39.1002",hca_type="MT4129"} 1`,
		`node_infiniband_rate_bytes_per_second{device="nic0",port="1"} 5e+10`,
		`node_infiniband_state_id{device="nic0",port="1"} 4`,
		`node_infiniband_physical_state_id{device="nic0",port="1"} 5`,
		`node_infiniband_port_data_transmitted_bytes_total{device="nic0",port="1"} 1000`,
		`node_infiniband_local_ack_timeout_errors_total{device="nic0",port="1"} 3`,
		`node_infiniband_rx_icrc_encapsulated_errors_total{device="nic0",port="1"} 1`,
		`softroce_rnr_naks_sent_total{device="nic0",port="1"} 4`,
		`softroce_retransmitted_packets_total{device="nic0",port="1"} 5`,
		`softroce_naks_total{code="remote_access_error",device="nic0",direction="sent",port="1"} 6`,
		`softroce_naks_total{code="psn_sequence_error",device="nic0",direction="received",port="1"} 0`,
		`softroce_opcode_packets_total{device="nic0",direction="received",opcode="RC_ACKNOWLEDGE",port="1"} 7`,
		`softroce_opcode_packets_total{device="nic0",direction="sent",opcode="0xff",port="1"} 8`,
		`softroce_drops_total{device="nic0",port="1",reason="icrc"} 1`,
		`softroce_qps{device="nic0",port="1",state="RTS"} 2`,
		`softroce_qps{device="nic0",port="1",state="ERR"} 1`,
		`softroce_qps{device="nic0",port="1",state="INIT"} 0`,
		`softroce_objects{device="nic0",kind="pd",port="1"} 2`,
		`softroce_objects{device="nic0",kind="srq",port="1"} 2`,
		`softroce_fault_matched_total{device="nic0",id="1",line="2",port="1",rule="drop nth 3"} 9`,
		`softroce_fault_acted_total{device="nic0",id="1",line="2",port="1",rule="drop nth 3"} 1`,
		`softroce_fault_matched_total{device="nic0",id="5",line="2",port="1",rule="drop nth 3"} 8`,
		`softroce_registered_bytes{device="nic0",port="1"} 4096`,
		`softroce_memory_regions{backing="process",device="nic0",port="1",unshared="threads"} 1`,
		`softroce_ring_bytes{device="nic0",port="1"} 512`,
		`softroce_engine_seconds_total{engine="0",state="asleep"} 2`,
		`softroce_engine_busy_ratio{engine="0"} 0.25`,
		`softroce_engine_steps_total{engine="0"} 9`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestMetricNamesPassLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewCollector(source{}, "1.2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestCounterNamesAreUnique(t *testing.T) {
	short, prom := map[string]bool{}, map[string]bool{}
	for _, c := range Counters {
		if short[c.Name] || prom[c.Prom] {
			t.Errorf("%s or %s is used twice", c.Name, c.Prom)
		}
		short[c.Name], prom[c.Prom] = true, true
	}
}

func TestHWCountersAreThoseOfTheTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/personas.md")
	if err != nil {
		t.Fatal(err)
	}
	for set, files := range hwCounters {
		for _, f := range files {
			if f.counter != "" && !slices.ContainsFunc(Counters, func(c Counter) bool { return c.Name == f.counter }) {
				t.Errorf("%s of %s shows %s, which is not a counter", f.file, set, f.counter)
			}
			want := "`" + f.file + "`"
			switch f.counter {
			case f.file:
			case "":
				want = fmt.Sprintf("| `%s` | %s | 0:", set, want)
			default:
				want = fmt.Sprintf("| `%s` | %s | `%s`", set, want, f.counter)
			}
			if !strings.Contains(string(doc), want) {
				t.Errorf("docs/reference/personas.md lacks %s", want)
			}
		}
	}
}

func TestOpcodesReturnsTableNames(t *testing.T) {
	var counts [256]uint64
	counts[packet.OpcodeCNP] = 1
	if l := Opcodes(&counts); len(l) != 1 || l[0] != (Labeled{"CNP", 1}) {
		t.Errorf("got %v", l)
	}
}

func TestMetricsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Counters {
		if !strings.Contains(string(doc), "| `"+c.Prom+"` | `"+c.Name+"` |") {
			t.Errorf("docs/reference/metrics.md lacks %s, %s", c.Prom, c.Name)
		}
	}
	for _, d := range descs {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		if !strings.Contains(string(doc), "`"+name) {
			t.Errorf("docs/reference/metrics.md lacks %s", name)
		}
	}
}
