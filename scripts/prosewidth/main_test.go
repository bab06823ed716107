package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTooWideFindsProseOnly(t *testing.T) {
	wide := strings.Repeat("word ", 21)
	for _, c := range []struct {
		file, text string
		want       []int
	}{
		{"a.go", "// " + wide + "\nx := \"" + wide + "\" // short\n\t// narrow\n", []int{1}},
		{"a.go", "\t// " + strings.Repeat("x", 93) + "\n\t// " + strings.Repeat("x", 94) + "\n", []int{2}},
		{"a.c", "/*\n * " + wide + "\n */\nint x;\n", []int{2}},
		{"run", "# " + wide + "\n#!" + wide + "\n", []int{1}},
		{"a.md", wide + "\n| " + wide + " |\n```\n" + wide + "\n```\n    " + wide + "\n[" + wide + "](x)\n" + wide + "\n", []int{1, 8}},
		{"a.md", strings.Repeat("ä", 100) + "\n", nil},
	} {
		if got := tooWide(c.file, c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q: lines %v, want %v", c.file, c.text, got, c.want)
		}
	}
}
