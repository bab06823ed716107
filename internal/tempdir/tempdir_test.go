package tempdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPathFallsBackToTmp(t *testing.T) {
	good, err := os.MkdirTemp("/tmp", "softroce-") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(good) })
	file, long := filepath.Join(good, "file"), filepath.Join(good, strings.Repeat("x", 100))
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(good))
	for _, c := range []struct{ tmp, path, forSocket string }{
		{good, good, good}, {long, long, "/tmp"}, {"", "/tmp", "/tmp"}, {filepath.Join(good, "none"), "/tmp", "/tmp"},
		{file, "/tmp", "/tmp"}, {filepath.Base(good), "/tmp", "/tmp"},
	} {
		t.Setenv("TMPDIR", c.tmp)
		if path, forSocket := Path(), ForSocket(); path != c.path || forSocket != c.forSocket {
			t.Errorf("TMPDIR=%q: %q, for sockets %q; want %q, %q", c.tmp, path, forSocket, c.path, c.forSocket)
		}
	}
}
