package harness

import (
	"path/filepath"
	"strings"
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
	case report.Total > reusedBuffers(report) || len(report.NotJudged) > 0:
		t.Errorf("%v", report)
	case report.Connections < connections || report.Messages < messages:
		t.Errorf("%s: want at least %d connections with %d messages", report.Verdict, connections, messages)
	default:
		t.Log(report.Verdict)
	}
}

// reusedBuffers counts the violations that are rping's: it fills the buffer of its 16-byte messages
// again when its peer has replied, without waiting for their completions. If an ACK is lost, the
// retransmission has the new content.
func reusedBuffers(r *check.Report) (n int) {
	for _, v := range r.Violations {
		if v.Rule == "resend-same" && strings.Contains(v.Detail, "is RC_SEND_ONLY with 16 bytes, and was another RC_SEND_ONLY with 16 bytes") {
			n++
		}
	}
	return n
}
