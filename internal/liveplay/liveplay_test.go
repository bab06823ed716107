package liveplay_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/internal/liveplay"
	"softroce/internal/replay"
	"softroce/internal/testbed"
)

const fixtures = "../../pcap-fixtures/"

func load(t *testing.T, name string) capture.Packets {
	t.Helper()
	ps, err := capture.Load(fixtures + name)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

// softroce replies as the kernel's NIC did in the captures, with the same memory and receives. No
// packet is lost.
func TestFixturesPlayToSimulatedNIC(t *testing.T) {
	files, err := filepath.Glob(fixtures + "*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures")
	}
	played, unreliable := 0, 0
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			for _, fast := range []bool{true, false} {
				r, err := liveplay.File(f, testbed.NewSimulated, liveplay.Options{Fast: fast})
				if errors.Is(err, replay.ErrNothing) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				played++
				if strings.Contains(f, "uc") {
					unreliable++
				}
				if r.Differences() > 0 {
					t.Errorf("%v", r)
				}
				for _, s := range r.Streams {
					// In this capture replies were lost in a way that the other replies do not
					// show: they come too early, and once more.
					again := s.SentAgain > 0 && (s.Side == liveplay.Requester || filepath.Base(f) != "loss-atomic.pcap")
					if again || s.Replies > 0 && s.Verdict().Compared == 0 || len(s.Verdict().Lost) > 0 {
						t.Errorf("%v", r)
					}
				}
			}
		})
	}
	if unreliable == 0 || played == unreliable {
		t.Errorf("%d played, %d of them of UC", played, unreliable)
	}
}
