package yamlfile

import (
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{"", ""},
		{"list: [a, b]", ""},
		{"lists: [a]", `unknown field "lists"`},
		{"list: 5", "sequence is expected"},
		{"list:\n !- ", "not YAML: "}, // a panic of the library
	} {
		var v struct{ List []string }
		err := Decode(strings.NewReader(c.text), &v)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v, want %q", c.text, err, c.err)
		}
	}
}
