package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketsHaveAFolderWhateverTheEnvironmentNames(t *testing.T) {
	good, err := os.MkdirTemp("/tmp", "softroce-run-") // a socket's path has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(good) })
	file := filepath.Join(good, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(good, strings.Repeat("x", 100))
	for _, dir := range []string{long, filepath.Join(good, "session"), filepath.Join(good, "open", "softroce")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(good)
	for _, c := range []struct{ tmp, want string }{
		{good, good}, {"", "/tmp"}, {filepath.Join(good, "none"), "/tmp"}, {file, "/tmp"}, {long, "/tmp"}, {"session", "/tmp"},
	} {
		t.Setenv("TMPDIR", c.tmp)
		if got := tempDir(); got != c.want {
			t.Errorf("TMPDIR=%q: %q, want %q", c.tmp, got, c.want)
		}
	}
	t.Setenv("TMPDIR", good)
	fallback := filepath.Join(good, sharedName())
	for _, c := range []struct{ session, want string }{
		{filepath.Join(good, "session"), filepath.Join(good, "session", "softroce")},
		{"", fallback}, {"session", fallback}, {filepath.Join(good, "none"), fallback}, {long, fallback},
		{filepath.Join(good, "open"), fallback}, // others may look into it
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.session)
		if got, err := sharedDir(); err != nil || got != c.want {
			t.Errorf("XDG_RUNTIME_DIR=%q: %q, %v, want %q", c.session, got, err, c.want)
		}
	}
}
