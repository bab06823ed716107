package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wireFixture begins with a RoCEv2 packet.
const wireFixture = "../../pcap-fixtures/loss-write-resp.pcap"

func TestCheckReportsPacketAndRule(t *testing.T) {
	b, err := os.ReadFile(wireFixture)
	if err != nil {
		t.Fatal(err)
	}
	b[24+16+100] ^= 1 // flips a bit in the payload of the first packet
	for _, c := range []struct {
		name string
		file []byte
		out  string // what stdout contains
		errs string // what stderr begins with
	}{
		{"wrong", b, "packet 1: icrc: ", ""},
		{"cut", b[:len(b)-10], "packet 1: icrc: ", "softroce: "},
		{"start", b[:24], "nothing was judged: there is no RoCE or InfiniBand packet", ""},
	} {
		file := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(file, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		status := run([]string{"check", file}, &out, &errs)
		if want := map[bool]int{true: exitIncomplete, false: exitFailed}[c.name == "start"]; status != want {
			t.Errorf("%s: status %d, want %d", c.name, status, want)
		}
		if !strings.Contains(out.String(), c.out) || !strings.HasPrefix(errs.String(), c.errs) || c.errs == "" && errs.Len() > 0 {
			t.Errorf("%s:\n%s%s", c.name, &out, &errs)
		}
	}
}
