package explain

import (
	"os"
	"strings"
	"testing"

	"softroce/transport"
)

func TestEveryReasonIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range transport.Reasons() {
		if !strings.Contains(string(page), "`"+r.String()+"`") {
			t.Errorf("docs/use/explain.md does not have %v", r)
		}
	}
}
