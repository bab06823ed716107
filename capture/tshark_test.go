package capture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"softroce/packet"
)

// column is a field that tshark dissects and where our JSON has it.
type column struct {
	tshark string
	json   string // path of names
	base   int    // of tshark's number; 0: as its prefix says, -1: text
}

var columns = []column{
	{"frame.time_epoch", "time", -1},
	{"eth.src", "src_mac", -1},
	{"eth.dst", "dst_mac", -1},
	{"ip.src", "src", -1}, // or ipv6.src, see tsharkRows
	{"ip.dst", "dst", -1},
	{"ip.id", "ip_id", 0},
	{"ip.flags.df", "df", 0},
	{"ip.ttl", "hop_limit", 0}, // or ipv6.hlim
	{"ipv6.flow", "flow_label", 0},
	{"udp.srcport", "src_port", 0},
	{"udp.dstport", "dst_port", 0},
	{"infiniband.bth.opcode", "opcode", 0},
	{"infiniband.bth.se", "solicited", 0},
	{"infiniband.bth.m", "mig_req", 0},
	{"infiniband.bth.padcnt", "pad", 0},
	{"infiniband.bth.tver", "tver", 0},
	{"infiniband.bth.p_key", "pkey", 0},
	{"infiniband.bth.destqp", "dest_qp", 0},
	{"infiniband.bth.a", "ack_req", 0},
	{"infiniband.bth.psn", "psn", 0},
	{"infiniband.reth.dmalen", "reth.length", 0},
	{"infiniband.atomiceth.swapdt", "atomiceth.swap_add", 0},
	{"infiniband.atomiceth.cmpdt", "atomiceth.compare", 0},
	{"infiniband.aeth.syndrome", "aeth.syndrome", 0},
	{"infiniband.aeth.msn", "aeth.msn", 0},
	{"infiniband.atomicacketh.origremdt", "atomicacketh.original", 0},
	{"infiniband.deth.q_key", "deth.qkey", 0},
	{"infiniband.deth.srcqp", "deth.src_qp", 0},
	{"infiniband.immdt", "immdt", 16},
	{"infiniband.ieth", "ieth.rkey", 16},
}

// extraFields are the fields that have two names in tshark or in the JSON form. The test compares
// them separately.
var extraFields = []string{
	"ipv6.src", "ipv6.dst", "ipv6.hlim", "infiniband.reth.va", "infiniband.reth.r_key", "infiniband.invariant.crc", "_ws.malformed", "frame.number",
}

// needTshark skips the test where tshark is missing; a CI run must have it.
func needTshark(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI must have tshark: %v", err)
		}
		t.Skip("compares with tshark, which is not installed: apt-get install tshark")
	}
}

// tsharkRows returns tshark's fields of each RoCEv2 packet of a file, by name.
func tsharkRows(t *testing.T, file string) (rows []map[string]string) {
	t.Helper()
	var names []string
	for _, c := range columns {
		names = append(names, c.tshark)
	}
	names = append(names, extraFields...)
	// Otherwise tshark parses a short SEND as RPC over RDMA and reports a malformed packet.
	args := []string{"-r", file, "-Y", "infiniband", "-T", "fields", "-E", "occurrence=f", "--disable-protocol", "rpcordma"}
	for _, n := range names {
		args = append(args, "-e", n)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("tshark", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		row := map[string]string{}
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			row[names[i]] = v
		}
		for four, six := range map[string]string{"ip.src": "ipv6.src", "ip.dst": "ipv6.dst", "ip.ttl": "ipv6.hlim"} {
			row[four] += row[six]
		}
		rows = append(rows, row)
	}
	return rows
}

// mergeFixtures writes the frames of every fixture, and one of each opcode that tshark knows over
// IPv4 and IPv6, to one pcapng file.
func mergeFixtures(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.pcapng")
	w, err := Create(file, "fixtures", "made")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fixtureFiles(t) {
		r, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for rec, err := range r.Records() {
			if err != nil {
				t.Fatal(err)
			}
			if err := w.WriteFrame(rec.Time.UnixNano(), 0, rec.Data); err != nil {
				t.Fatal(err)
			}
		}
	}
	for o := range packet.Opcode(packet.CNP) {
		in := o.Info()
		if !in.Valid || in.Kind == packet.KindFlush || in.Kind == packet.KindAtomicWrite {
			continue
		}
		payload := ""
		if in.Payload {
			payload = "some payload" // without a payload tshark reports malformed EoIB
		}
		for i, f := range [][]byte{markedFrame(o, "192.0.2.1", "192.0.2.2", payload), markedFrame(o, "2001:db8::1", "2001:db8::2", payload)} {
			if err := w.WriteFrame(1_700_000_000_000_000_001+int64(i), 1, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDecodeAgreesWithTshark(t *testing.T) {
	needTshark(t)
	file := mergeFixtures(t)
	r, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out bytes.Buffer
	if _, err := Decode(&out, r, DecodeOptions{JSON: true}); err != nil {
		t.Fatal(err)
	}
	rows := tsharkRows(t, file)
	dec := json.NewDecoder(&out)
	dec.UseNumber()
	crcs := 0
	for i, row := range rows {
		var j map[string]any
		if err := dec.Decode(&j); err != nil {
			t.Fatalf("JSON of packet %d of %d: %v", i, len(rows), err)
		}
		if row["frame.number"] != fmt.Sprint(j["no"]) {
			t.Fatalf("tshark's packet %d is frame %s, ours %v", i, row["frame.number"], j["no"])
		}
		compareRow(t, row, j)
		crcs += bit(row["infiniband.invariant.crc"] != "")
	}
	if dec.More() {
		t.Errorf("the JSON output has more packets than the %d of tshark", len(rows))
	}
	if len(rows) < 3000 || crcs < len(rows)/2 {
		t.Errorf("only %d packets, %d with an ICRC, were compared", len(rows), crcs)
	}
}

func compareRow(t *testing.T, row map[string]string, j map[string]any) {
	t.Helper()
	check := func(name, want string, ours any, base int) {
		if got := canonical(ours, 0); canonical(want, base) != got {
			t.Errorf("frame %s (%v): %s is %q, ours %q", row["frame.number"], j["opcode_name"], name, want, got)
		}
	}
	for _, c := range columns {
		base := c.base
		ours := lookup(j, c.json)
		if base < 0 {
			if want := row[c.tshark]; fmt.Sprint(ours) != want {
				t.Errorf("frame %s: %s is %s, ours %v", row["frame.number"], c.tshark, want, ours)
			}
			continue
		}
		check(c.tshark, row[c.tshark], ours, base)
	}
	// tshark gives AtomicETH's address and key the names of the RETH's.
	va, rkey := lookup(j, "reth.va"), lookup(j, "reth.rkey")
	if va == nil {
		va, rkey = lookup(j, "atomiceth.va"), lookup(j, "atomiceth.rkey")
	}
	check("infiniband.reth.va", row["infiniband.reth.va"], va, 0)
	check("infiniband.reth.r_key", row["infiniband.reth.r_key"], rkey, 0)
	if crc := row["infiniband.invariant.crc"]; crc != "" { // absent if tshark parses the payload as Ethernet
		check("infiniband.invariant.crc", crc, swapped(j["icrc"]), 0)
	}
	if row["_ws.malformed"] != "" {
		t.Errorf("frame %s (%v): tshark reports a malformed packet", row["frame.number"], j["opcode_name"])
	}
}

// swapped turns an ICRC into the number that its bytes on the wire make, as tshark does.
func swapped(v any) any {
	n, err := strconv.ParseUint(fmt.Sprint(v), 10, 32)
	if err != nil {
		return v
	}
	return fmt.Sprint(n>>24 | n>>8&0xff00 | n<<8&0xff0000 | n<<24&0xff000000)
}

// lookup returns the value at a path of names, nil if it is absent.
func lookup(j map[string]any, path string) any {
	first, rest, nested := strings.Cut(path, ".")
	if !nested {
		return j[first]
	}
	inner, ok := j[first].(map[string]any)
	if !ok {
		return nil
	}
	return lookup(inner, rest)
}

// canonical returns a number of any form in decimal. An absent value stays empty.
func canonical(v any, base int) string {
	s := fmt.Sprint(v)
	switch s {
	case "<nil>", "":
		return ""
	case "true", "True":
		return "1"
	case "false", "False":
		return "0"
	}
	n, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		return s
	}
	return fmt.Sprint(n)
}
