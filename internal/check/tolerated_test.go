package check

import (
	"path/filepath"
	"testing"

	"softroce/capture"
)

// sample returns the step that selects every packet of small captures and some of large ones.
func sample(n int) int { return n/24 + 1 }

func recordsOf(t *testing.T, file string) []capture.Record {
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var rs []capture.Record
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, rec)
	}
	return rs
}

// judgedSomething fails a test whose captures have hardly any message that is judged.
func judgedSomething(t *testing.T, reports []*Report) {
	t.Helper()
	messages := 0
	for _, r := range reports {
		messages += bit(r.Connections > 0 && r.Messages > 0)
	}
	if 2*messages < len(reports) || len(reports) < 1000 {
		t.Errorf("messages are judged in only %d of %d captures", messages, len(reports))
	}
}

// A capture that begins late or ends early breaks no rule.
func TestPartialCaptureBreaksNoRule(t *testing.T) {
	var reports []*Report
	for _, file := range fixtureFiles(t) {
		if filepath.Base(file) == "vp-rnr-code14.pcap" {
			continue // other waits in the capture explain a short one
		}
		rs := recordsOf(t, file)
		for i := 0; i < len(rs); i += sample(len(rs)) {
			from, to := Records(rs[i:]), Records(rs[:i])
			if from.Total != 0 {
				t.Errorf("%s from packet %d on:\n%v", filepath.Base(file), i+1, from)
				break
			}
			if to.Total != 0 {
				t.Errorf("%s up to packet %d:\n%v", filepath.Base(file), i, to)
				break
			}
			reports = append(reports, from, to)
		}
	}
	judgedSomething(t, reports)
}

// A packet that the network duplicates, before or after the point of capture, breaks no rule.
func TestDuplicatedPacketBreaksNoRule(t *testing.T) {
	var reports []*Report
	for _, file := range fixtureFiles(t) {
		rs := recordsOf(t, file)
		for i := 0; i < len(rs); i += sample(len(rs)) {
			twice := append(append([]capture.Record{}, rs[:i+1]...), rs[i:]...)
			r := Records(twice)
			if r.Total != 0 {
				t.Errorf("%s with packet %d twice:\n%v", filepath.Base(file), i+1, r)
				break
			}
			reports = append(reports, r)
		}
	}
	judgedSomething(t, reports)
}

// If the capture has only one direction, the other one is not judged.
func TestOneDirectionBreaksNoRule(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		rs := recordsOf(t, file)
		first, err := capture.Parse(rs[len(rs)-1])
		if err != nil {
			continue
		}
		var one, other []capture.Record
		for _, rec := range rs {
			if p, err := capture.Parse(rec); err == nil && p.Src == first.Src {
				one = append(one, rec)
			} else {
				other = append(other, rec)
			}
		}
		for _, half := range [][]capture.Record{one, other} {
			if r := Records(half); r.Total != 0 || r.RoCE == 0 != (len(half) == 0) || r.Connections != 0 {
				t.Errorf("%s:\n%v", filepath.Base(file), r)
			}
		}
	}
}
