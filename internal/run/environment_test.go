package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func libraryDir(t *testing.T, base string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), base)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range sonames {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEnvironmentKeepsInheritedSettings(t *testing.T) {
	dir := libraryDir(t, "lib")
	ours := dir + "/libibverbs.so.1:" + dir + "/librdmacm.so.1"
	for _, c := range []struct {
		name                                string
		before, after                       []string
		libraries, device, memory, sanitize string
	}{
		{"empty", []string{"A=b"}, []string{"A=b", "LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + ours, "SOFTROCE_SOCKET=/s"}, dir, "", "", ""},
		{
			"there", []string{"LD_PRELOAD=/x.so y.so", "LD_LIBRARY_PATH=/z:/w", "SOFTROCE_SOCKET=/old"},
			[]string{"LD_LIBRARY_PATH=" + dir + ":/z:/w", "LD_PRELOAD=/x.so y.so:" + ours, "SOFTROCE_SOCKET=/s", "SOFTROCE_DEVICE=softroce1"},
			dir, "softroce1", "", "",
		},
		{
			"memory", []string{"SOFTROCE_MEMORY=process"},
			[]string{"LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + ours, "SOFTROCE_SOCKET=/s", "SOFTROCE_MEMORY=auto"}, dir, "", "auto", "",
		},
		{
			"sanitizer", []string{"LD_PRELOAD=/x.so"},
			[]string{"LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=libasan.so.8:/x.so:" + ours, "SOFTROCE_SOCKET=/s"}, dir, "", "", "libasan.so.8",
		},
	} {
		got, err := environment(c.before, c.libraries, "/s", c.device, c.memory, c.sanitize)
		if err != nil || !slices.Equal(got, c.after) {
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.after)
		}
	}
}

func TestEnvironmentRejectsDirsWithSeparators(t *testing.T) {
	spaced := libraryDir(t, "a folder")
	got, err := environment(nil, spaced, "/s", "", "", "")
	if err != nil || lookup(got, "LD_PRELOAD") != "libibverbs.so.1:librdmacm.so.1" || lookup(got, "LD_LIBRARY_PATH") != spaced {
		t.Errorf("with a space: %v, %v", got, err)
	}
	if _, err := environment(nil, libraryDir(t, "a:b"), "/s", "", "", ""); !errors.Is(err, ErrNoLibraries) {
		t.Errorf("with a colon: %v", err)
	}
}

func TestUnpackReusesAndRepairsCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	files := fstest.MapFS{verbsLibrary: {Data: []byte("library")}, "librdmacm.so.1": {Data: []byte("another")}}
	dir, _, err := unpack(files)
	if err != nil || filepath.Dir(filepath.Dir(dir)) != cache {
		t.Fatalf("%s, %v", dir, err)
	}
	check := func(dir string) {
		t.Helper()
		for _, name := range []string{verbsLibrary, "libibverbs.so"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != "library" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
	}
	check(dir)
	before, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := unpack(files); err != nil || again != dir {
		t.Errorf("second unpack: %s, %v", again, err)
	}
	if after, err := os.Stat(dir); err != nil || !os.SameFile(before, after) {
		t.Errorf("intact files were written again (%v)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, verbsLibrary), []byte("lib"), 0o644); err != nil {
		t.Fatal(err)
	}
	if again, _, err := unpack(files); err != nil || again != dir {
		t.Errorf("after damage: %s, %v", again, err)
	}
	check(dir)
	files[verbsLibrary] = &fstest.MapFile{Data: []byte("newer")}
	if newer, _, err := unpack(files); err != nil || newer == dir {
		t.Errorf("another version: %s, %v", newer, err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "softroce/new-*")); left != nil {
		t.Errorf("left over: %v", left)
	}
}

func TestUnpackWithoutCacheIsTemporary(t *testing.T) {
	for _, cache := range []string{"/proc/none", filepath.Join(t.TempDir(), "a:b")} {
		t.Setenv("XDG_CACHE_HOME", cache)
		dir, cleanup, err := unpack(fstest.MapFS{verbsLibrary: {Data: []byte("library")}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, verbsLibrary)); err != nil {
			t.Error(err)
		}
		cleanup()
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestUnpackAvoidsNoexecMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	noexec, open := t.TempDir(), t.TempDir()
	if err := unix.Mount("none", noexec, "tmpfs", unix.MS_NOEXEC, ""); err != nil && os.Getenv("CI") == "" {
		t.Skipf("mount: %v", err) // root in a container
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(noexec, unix.MNT_DETACH) })
	files := fstest.MapFS{verbsLibrary: {Data: []byte("library")}}
	t.Setenv("XDG_CACHE_HOME", noexec)
	t.Setenv("TMPDIR", open)
	dir, cleanup, err := unpack(files)
	if err != nil || filepath.Dir(dir) != open {
		t.Fatalf("with a noexec cache: %s, %v", dir, err)
	}
	cleanup()
	t.Setenv("TMPDIR", noexec)
	if _, _, err := unpack(files); err == nil || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("with a noexec temporary directory: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(noexec, "softroce-lib-*")); left != nil {
		t.Errorf("left over: %v", left)
	}
	if err := os.WriteFile(filepath.Join(noexec, verbsLibrary), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(LibraryEnv, noexec)
	if _, _, err := libraries(); !errors.Is(err, ErrNoLibraries) || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("with SOFTROCE_LIBDIR: %v", err)
	}
}
