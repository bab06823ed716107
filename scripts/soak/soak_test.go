package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-worker" {
		main() // a process that a run in a test has started
	}
	os.Exit(m.Run())
}

// A run of a few seconds does everything that an hour does. The tests beside it keep the machine
// busy, so that copies by the kernel may take as long as ones that wait for a page.
func TestShortSoak(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "softroce")
	if out, err := exec.Command("go", "build", "-o", binary, "softroce/cmd/softroce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := run(&options{time: 8 * time.Second, qps: 64, mapped: true, daemon: binary, seed: 1}); err != nil {
		t.Error(err)
	}
}

// newJudge returns a soak without processes.
func newJudge() *soak {
	return &soak{workers: workers{failures: make(chan error, 1), tally: tally{}, killed: map[int]bool{7: true}}}
}

func (s *soak) failure() string {
	select {
	case err := <-s.failures:
		return err.Error()
	default:
		return ""
	}
}

func TestErrorsNeedExplanation(t *testing.T) {
	for _, c := range []struct {
		what   string
		report report
		server bool   // one was killed
		want   string // in the failure
	}{
		{"the peer was killed", report{Lost: "flushed", Peer: 7}, false, ""},
		{"the peer lives", report{Lost: "flushed", Peer: 8}, false, "process 8, was not killed"},
		{"a server was killed", report{Lost: "refused"}, true, ""},
		{"no server was killed", report{Lost: "refused"}, false, "refused"},
		{"wrong data", report{Fail: "byte 3", Peer: 7}, true, "byte 3"},
	} {
		s := newJudge()
		if c.server {
			s.serverKilled = time.Now()
		}
		s.judge(kindPairs, 1, &c.report)
		if got := s.failure(); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: failure %q, want %q", c.what, got, c.want)
		}
	}
}

func TestRunThatDidNothingFails(t *testing.T) {
	s := newJudge()
	for _, k := range expected[1:] {
		s.tally[k] = 1
	}
	if err := s.complete(); err == nil || !strings.Contains(err.Error(), ": "+expected[0]) {
		t.Errorf("without %s: %v", expected[0], err)
	}
	s.tally[expected[0]] = 1
	if err := s.complete(); err != nil {
		t.Error(err)
	}
}

func TestGrowingMemoryFails(t *testing.T) {
	s := newJudge()
	for i := range 3600 {
		s.rss = append(s.rss, 100<<10+i%3000)
	}
	if err := s.memory(); err != nil {
		t.Error(err)
	}
	for i := range s.rss {
		s.rss[i] += i * 30 // 105 MiB an hour
	}
	if s.memory() == nil {
		t.Error("growing memory was accepted")
	}
}

// What arrives is compared byte by byte.
func TestMessagesAreCompared(t *testing.T) {
	b := make([]byte, 100)
	compose(5, b)
	if seq, err := parse(b); seq != 5 || err != nil {
		t.Error(seq, err)
	}
	b[77] ^= 1
	if _, err := parse(b); err == nil || !strings.Contains(err.Error(), "byte 77") {
		t.Error(err)
	}
	if _, err := parse(b[:99]); err == nil {
		t.Error(errors.New("a shorter message was accepted"))
	}
}
