package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBrokenLinksAreReported(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.md": "# One `two`: three\n\n[ok](b.md) [ok](b.md#b-2) [ok](#one-two-three) [ok](https://example.org/x#y) [ok](sub/)\n\n" +
			"[1](c.md)\n[2](b.md#gone)\n[3](#two)\n\n    [code](gone.md)\n```\n[code](gone.md)\n```\n",
		"b.md":     "## B 2\n",
		"sub/x.go": "package sub\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	broken, err := check(filepath.Join(dir, "a.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{":5: c.md: no such file", ":6: b.md#gone: no such heading", ":7: #two: no such heading"}
	if len(broken) != len(want) {
		t.Fatalf("broken links: %q", broken)
	}
	for i, w := range want {
		if !strings.HasSuffix(broken[i], w) {
			t.Errorf("%q, want %q", broken[i], w)
		}
	}
}
