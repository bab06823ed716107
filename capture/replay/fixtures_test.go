package replay_test

import (
	"path/filepath"
	"testing"

	"softroce/capture/replay"
)

const fixtures = "../../pcap-fixtures"

func TestFixturesShowNoDifference(t *testing.T) {
	files, err := filepath.Glob(fixtures + "/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures")
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			r, err := replay.File(f, replay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Differences() != 0 {
				t.Errorf("%v", r)
			}
		})
	}
}
