package report

import (
	"io"
	"path/filepath"
	"testing"

	"softroce/capture"
	"softroce/internal/check"
	"softroce/internal/conversation"
)

func fixtures(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../pcap-fixtures/*.pcap")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	return files
}

func opener(file string) func() (*capture.Reader, error) {
	return func() (*capture.Reader, error) { return capture.Open(file) }
}

// totals are numbers of a whole capture.
type totals struct{ packets, connections, again, naks, rnrs, ce, cnps, violations int }

func totalsOf(r *Report) (n totals) {
	for _, c := range r.Connections {
		n.packets += c.Packets
		if c.Paired && c.Run == 1 {
			n.connections++
		}
		n.ce += c.CE
		n.cnps += c.CNPs
		n.violations += c.Violations
		for _, s := range c.Streams {
			n.again += s.SentAgain
			n.naks += s.NAKs
			n.rnrs += s.RNRs
		}
	}
	return n
}

// TestNumbersAreThoseOfCheckAndDecode compares the sums of all connections, and the data of the
// diagrams. TestPageShowsNumbersOfCheckAndDecode shows that a browser draws them.
func TestNumbersAreThoseOfCheckAndDecode(t *testing.T) {
	all := totals{}
	for _, file := range fixtures(t) {
		r, err := Read(opener(file))
		if err != nil {
			t.Fatal(err)
		}
		judged, err := check.File(file)
		if err != nil {
			t.Fatal(err)
		}
		from, err := capture.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := capture.Decode(io.Discard, from, capture.DecodeOptions{Remark: conversation.NewRemarks().On})
		from.Close()
		if err != nil {
			t.Fatal(err)
		}
		got := totalsOf(r)
		want := totals{judged.RoCE - judged.Views, judged.Connections, decoded.Again, judged.NAKs, judged.RNRNAKs, judged.CEMarks, judged.CNPs, judged.Total}
		if got != want {
			t.Errorf("%s: %+v, check and decode have %+v", filepath.Base(file), got, want)
		}
		compare(t, file, shownBy(t, r))
		all.again += want.again
		all.naks += want.naks
		all.rnrs += want.rnrs
	}
	if all.again == 0 || all.naks == 0 || all.rnrs == 0 {
		t.Errorf("the fixtures have too little: %+v", all)
	}
}
