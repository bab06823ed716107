package harness

import (
	"testing"

	"softroce/internal/check"
)

// A retransmission with another payload is excused in a connection to rping's port, and in no
// other.
func TestOnlyRpingReusesItsBuffers(t *testing.T) {
	const detail = "PSN 5 is RC_SEND_ONLY with 16 bytes, and was another RC_SEND_ONLY with 16 bytes"
	report := &check.Report{}
	for _, flow := range []string{
		"10.77.0.12 > 10.77.0.11 QP 0x11", "10.77.0.11 > 10.77.0.12 QP 0x11", "10.77.0.11 > 10.77.0.12 QP 0x12",
	} {
		report.Violations = append(report.Violations, check.Violation{Rule: "resend-same", Detail: detail, Flow: flow})
	}
	for file, want := range map[string]int{"cm-rping.pcap": 2, "cm-ucmatose.pcap": 0} {
		if n := reusedBuffers(t, "../../pcap-fixtures/"+file, report); n != want {
			t.Errorf("%s: %d of %d violations are rping's, want %d", file, n, len(report.Violations), want)
		}
	}
}
