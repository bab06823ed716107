package sysfs

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// abandon creates the directory that a killed process leaves behind.
func abandon(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), name)
	if err := os.MkdirAll(filepath.Join(dir, "sys/class"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sys/class/file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestRemoveStaleKeepsTreesInUse(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var used Tree
	dir, err := used.Open(func() []File { return []File{{Path: "sys/a", Text: "1"}} })
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()

	stale := []string{abandon(t, namePrefix+"1"), abandon(t, namePrefix+"23")}
	kept := []string{dir.Name(), abandon(t, namePrefix+"x"), abandon(t, namePrefix), abandon(t, "another")}
	link, pipe, file := filepath.Join(os.TempDir(), namePrefix+"4"), filepath.Join(os.TempDir(), namePrefix+"5"), filepath.Join(os.TempDir(), namePrefix+"6")
	if err := os.Symlink("another", link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil { // opening it for reading blocks
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kept = append(kept, link, pipe, file, filepath.Join(os.TempDir(), "another/sys/class/file"))
	if os.Geteuid() == 0 {
		foreign := abandon(t, namePrefix+"7")
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, foreign)
	}

	removed, err := RemoveStale()
	slices.Sort(removed)
	if err != nil || !slices.Equal(removed, stale) {
		t.Errorf("removed %q, %v; want %q", removed, err, stale)
	}
	for _, path := range stale {
		if exists(path) {
			t.Errorf("%s was not removed", path)
		}
	}
	for _, path := range kept {
		if !exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
	if got := read(t, dir, "sys/a"); got != "1" {
		t.Errorf("the open tree reads %q", got)
	}
	if err := used.Close(); err != nil || exists(dir.Name()) {
		t.Errorf("after Close: %v, directory exists: %t", err, exists(dir.Name()))
	}
}

func TestRemoveStaleRequiresASafeDirectory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stale := abandon(t, namePrefix+"1")
	for _, c := range []struct {
		mode   os.FileMode
		uid    int
		remove bool
	}{
		{0o777, os.Geteuid(), false},
		{0o775, os.Geteuid(), false},
		{0o777 | os.ModeSticky, 65534, false},
		{0o777 | os.ModeSticky, os.Geteuid(), true},
	} {
		if c.uid != os.Geteuid() && os.Geteuid() != 0 {
			continue // chown requires root
		}
		if err := os.Chmod(os.TempDir(), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(os.TempDir(), c.uid, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := RemoveStale(); err != nil || exists(stale) == c.remove {
			t.Errorf("directory of user %d with mode %v: %v, tree exists: %t", c.uid, c.mode, err, exists(stale))
		}
	}
}

// Another process may remove a directory between its creation and its locking.
func TestOpenWhileStaleTreesAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	stop := make(chan struct{})
	var removers sync.WaitGroup
	for range 2 {
		removers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := RemoveStale(); err != nil {
					t.Errorf("RemoveStale: %v", err)
					return
				}
			}
		})
	}
	for range 200 {
		var tree Tree
		dir, err := tree.Open(func() []File { return []File{{Path: "sys/a", Text: "1"}} })
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir, "sys/a"); got != "1" {
			t.Fatalf("the file reads %q", got)
		}
		dir.Close()
		if err := tree.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	removers.Wait()
}
