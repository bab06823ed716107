package check

import (
	"path/filepath"
	"testing"

	"softroce/capture"
)

// sample returns every packet of small captures and some of large ones.
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

// A capture that begins late or ends early shows less, and nothing wrong.
func TestPartialCaptureBreaksNoRule(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		if filepath.Base(file) == "vp-rnr-code14.pcap" {
			continue // the waits that were kept excuse the one that was not
		}
		rs := recordsOf(t, file)
		for i := 0; i < len(rs); i += sample(len(rs)) {
			if r := Records(rs[i:]); r.Total != 0 {
				t.Errorf("%s from packet %d on:\n%v", filepath.Base(file), i+1, r)
				break
			}
			if r := Records(rs[:i]); r.Total != 0 {
				t.Errorf("%s up to packet %d:\n%v", filepath.Base(file), i, r)
				break
			}
		}
	}
}

// A packet that the network doubles, before the capture or behind it, is nobody's fault.
func TestDuplicatedPacketBreaksNoRule(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		rs := recordsOf(t, file)
		for i := 0; i < len(rs); i += sample(len(rs)) {
			twice := append(append([]capture.Record{}, rs[:i+1]...), rs[i:]...)
			if r := Records(twice); r.Total != 0 {
				t.Errorf("%s with packet %d twice:\n%v", filepath.Base(file), i+1, r)
				break
			}
		}
	}
}

// Where the capture has one direction only, the other is not held to anything.
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
			if r := Records(half); r.Total != 0 {
				t.Errorf("%s:\n%v", filepath.Base(file), r)
			}
		}
	}
}
