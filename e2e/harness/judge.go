package harness

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/cm"
	"softroce/internal/check"
	"softroce/internal/conversation"
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
	case report.Total > reusedBuffers(t, file, report) || len(report.NotJudged) > 0:
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
func reusedBuffers(t *testing.T, file string, r *check.Report) (n int) {
	t.Helper()
	var rping map[string]bool
	for _, v := range r.Violations {
		if v.Rule != "resend-same" || !strings.Contains(v.Detail, "is RC_SEND_ONLY with 16 bytes, and was another RC_SEND_ONLY with 16 bytes") {
			continue
		}
		if rping == nil {
			rping = flowsOf(t, file, rpingPort)
		}
		if rping[v.Flow] {
			n++
		}
	}
	return n
}

// rpingPort is the port on which rping listens.
const rpingPort = 7174

// flowsOf returns the flows of the RC connections to a port: REQ and REP in the capture say which
// queue pairs they have.
func flowsOf(t *testing.T, file string, port uint16) map[string]bool {
	t.Helper()
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type request struct {
		from, to netip.Addr
		id       uint32
	}
	requests, flows := map[request]bool{}, map[string]bool{}
	for rec, err := range r.Records() {
		if err != nil {
			break // Judge reports it
		}
		p, err := capture.Parse(rec)
		if err != nil || p.DestQP != cm.GSIQPN {
			continue
		}
		add := func(qpn uint32) { flows[conversation.FlowKey{Src: p.Dst, Dst: p.Src, QPN: qpn}.String()] = true }
		switch _, m, _ := cm.Parse(p.Payload); m := m.(type) {
		case *cm.REQ:
			if m.ServiceID == cm.ServiceID(cm.PortSpaceTCP, port) {
				requests[request{p.Src, p.Dst, m.LocalID}] = true
				add(m.LocalQPN)
			}
		case *cm.REP:
			if requests[request{p.Dst, p.Src, m.RemoteID}] {
				add(m.LocalQPN)
			}
		}
	}
	return flows
}
