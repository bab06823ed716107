package check

import (
	"strings"
	"testing"
)

func TestSummarySaysWhichMigReqTheFlowsHave(t *testing.T) {
	for _, c := range []struct {
		flows [2]int
		want  string
	}{
		{[2]int{0, 0}, "connections\n"},
		{[2]int{2, 0}, "connections, MigReq 0\n"},
		{[2]int{0, 2}, "connections, MigReq 1\n"},
		{[2]int{1, 2}, "connections, MigReq 0 in 1 flow, 1 in 2 flows\n"},
	} {
		var b strings.Builder
		if err := (&Report{MigReq: c.flows}).WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("MigReq %v: got %q, want …%q", c.flows, b.String(), c.want)
		}
	}
}
