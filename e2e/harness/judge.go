package harness

import (
	"path/filepath"
	"testing"

	"softroce/internal/check"
)

// Judged returns options for a daemon that record all of its packets. When the daemon has ended,
// the recording is held to the rules of the protocol: see Judge. It precedes the start of the
// daemon.
func Judged(t *testing.T, connections, messages int) (options []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.pcapng")
	t.Cleanup(func() { Judge(t, file, connections, messages) }) // cleanups run in reverse order
	return []string{"--capture", file, "--capture-blocking"}
}

// Judge holds a capture to the rules of the protocol. At least so many connections, with so many
// messages, must have been judged, and requests and replies of all of them been compared: a judge
// that looks at nothing finds nothing.
func Judge(t *testing.T, file string, connections, messages int) {
	t.Helper()
	report, err := check.File(file)
	switch {
	case err != nil:
		t.Errorf("%s: %v", file, err)
	case report.Total > 0 || len(report.NotJudged) > 0:
		t.Errorf("%v", report)
	case report.Connections < connections || report.Messages < messages:
		t.Errorf("%s: want at least %d connections with %d messages", report.Verdict, connections, messages)
	default:
		t.Log(report.Verdict)
	}
}
