package yamlfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{"", ""},
		{"list: [a, b]", ""},
		{"list: [a]\n---\nlist: [b]", "want one YAML document"},
		{"lists: [a]", `line 1: key "lists" is unknown here`},
		{"list: 5", "line 1: want a list"},
		{"list:\n !- ", "not YAML: "}, // a panic of the library
	} {
		var v struct{ List []string }
		err := Decode(strings.NewReader(c.text), &v)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v, want %q", c.text, err, c.err)
		}
	}
}

func TestLoadNamesFileLineAndKey(t *testing.T) {
	type inner struct {
		Size int `yaml:"size"`
	}
	for _, c := range []struct{ text, err string }{
		{"list: [a]\nouter: {size: 5}", ""},
		{"list: [a]\nouter: {sice: 5}", `file.yaml:2: key "sice" is unknown here; did you mean "size"?`},
		{"list: [a]\nsize: 5", `file.yaml:2: key "size" is unknown here (have: list, outer)`},
		{"list: 5", "file.yaml:1: "},
		{"list:\n !- ", "file.yaml: not YAML: "},
		{"list: [" + strings.Repeat("a, ", 100) + "]", "file.yaml: larger than 100 bytes"},
	} {
		path := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		var v struct {
			List  []string `yaml:"list"`
			Outer inner    `yaml:"outer"`
		}
		err := Load(path, 100, &v)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v, want %q", c.text, err, c.err)
		}
	}
}
