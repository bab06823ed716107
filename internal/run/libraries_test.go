package run

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestUnpackReplacesWhatItDidNotWrite changes an unpacked directory in ways that would have
// programs load other code.
func TestUnpackReplacesWhatItDidNotWrite(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	files := fstest.MapFS{verbsLibrary: {Data: []byte("library")}}
	for name, change := range map[string]func(dir string) error{
		"another library":             func(dir string) error { return os.WriteFile(filepath.Join(dir, "libc.so.6"), nil, 0o755) },
		"a library that others write": func(dir string) error { return os.Chmod(filepath.Join(dir, verbsLibrary), 0o777) },
		"a link for a library": func(dir string) error {
			aside := filepath.Join(filepath.Dir(dir), "aside")
			os.Remove(aside)
			if err := os.Rename(filepath.Join(dir, verbsLibrary), aside); err != nil {
				return err
			}
			return os.Symlink(aside, filepath.Join(dir, verbsLibrary))
		},
		"a link to elsewhere": func(dir string) error {
			link := filepath.Join(dir, "libibverbs.so")
			if err := os.Remove(link); err != nil {
				return err
			}
			return os.Symlink("/nonexistent", link)
		},
	} {
		dir, _, err := unpack(files)
		if err != nil {
			t.Fatal(err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		again, _, err := unpack(files)
		if err != nil || again != dir || !intact(files, dir) {
			t.Errorf("%s: unpacked to %s, %v, and not repaired", name, again, err)
		}
	}
}

// TestUnpackAvoidsDirectoriesOfOtherUsers has root run in the environment of another user, with the
// very libraries in that user's cache.
func TestUnpackAvoidsDirectoriesOfOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can create directories of another user")
	}
	files := fstest.MapFS{verbsLibrary: {Data: []byte("library")}}
	tmp, theirTmp := t.TempDir(), t.TempDir()
	for name, open := range map[string]func(dir string) error{
		"owned by another user": func(dir string) error { return os.Chown(dir, 12345, -1) },
		"writable for a group":  func(dir string) error { return os.Chmod(dir, 0o775) },
		"writable for all":      func(dir string) error { return os.Chmod(dir, 0o777) },
	} {
		for _, level := range []string{".", "softroce"} {
			cache := t.TempDir()
			t.Setenv("XDG_CACHE_HOME", cache)
			t.Setenv("TMPDIR", tmp)
			planted, _, err := unpack(files)
			if err != nil || !strings.HasPrefix(planted, cache) {
				t.Fatalf("unpacked to %s, %v", planted, err)
			}
			if err := open(filepath.Join(cache, level)); err != nil {
				t.Fatal(err)
			}
			dir, cleanup, err := unpack(files)
			if err != nil || filepath.Dir(dir) != tmp {
				t.Errorf("cache/%s %s: unpacked to %s, %v", level, name, dir, err)
			}
			cleanup()
		}
		if err := open(theirTmp); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", theirTmp)
		dir, cleanup, err := unpack(files)
		if err != nil || name != "writable for a group" && filepath.Dir(dir) != "/tmp" {
			t.Errorf("TMPDIR %s: unpacked to %s, %v", name, dir, err)
		}
		cleanup()
		if err := os.Chmod(theirTmp, fs.FileMode(0o755)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(theirTmp, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
}
