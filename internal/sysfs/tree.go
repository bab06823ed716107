package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Tree is a world-readable directory with files. Its zero value is ready to use: the first Open
// creates the directory. Its methods may be called from any goroutine.
type Tree struct {
	mu      sync.Mutex
	dir     string
	root    *os.File // the directory; while it is open, no other directory has its inode
	lock    *os.File // prevents RemoveStale from removing the directory
	have    map[string]File
	updated time.Time
	closed  bool
}

// maxAge is the age of files up to which Open does not update them.
const maxAge = 50 * time.Millisecond

// ErrClosed is returned by Open after Close.
var ErrClosed = errors.New("device file tree is closed")

// Open updates the directory to what files returns, unless it was updated within maxAge, and opens
// it for the caller to close. For users that already have it open, each file changes atomically.
func (t *Tree) Open(files func() []File) (*os.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if !t.exists() {
		if err := t.make(); err != nil {
			return nil, fmt.Errorf("device file tree: %w", err)
		}
	}
	if time.Since(t.updated) > maxAge {
		if err := t.update(files()); err != nil {
			return nil, fmt.Errorf("device file tree: %w", err)
		}
		t.updated = time.Now()
	}
	return os.Open(t.dir)
}

// exists reports whether the directory exists and is the one that was created. A cleaner of
// temporary files may have removed it, and another process may have taken the name.
func (t *Tree) exists() bool {
	if t.dir == "" {
		return false
	}
	made, err := t.root.Stat()
	if err != nil {
		return false
	}
	is, err := os.Lstat(t.dir)
	return err == nil && os.SameFile(is, made)
}

func (t *Tree) make() error {
	dir, lock, err := newDir()
	if err != nil {
		return err
	}
	root, err := os.Open(dir)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		root.Close()
		lock.Close()
		os.Remove(dir)
		return err
	}
	t.root.Close() // of a directory that was removed; closing nil is harmless
	t.lock.Close()
	t.dir, t.root, t.lock, t.have, t.updated = dir, root, lock, map[string]File{}, time.Time{}
	return nil
}

func (t *Tree) update(files []File) error {
	gone := t.have
	t.have = make(map[string]File, len(files))
	for _, f := range files {
		old, ok := gone[f.Path]
		if ok && old == f {
			_, err := os.Lstat(filepath.Join(t.dir, f.Path))
			ok = err == nil
		}
		if !ok || old != f {
			if err := t.put(f); err != nil {
				return err
			}
		}
		t.have[f.Path] = f
		delete(gone, f.Path)
	}
	for path := range gone {
		if err := os.Remove(filepath.Join(t.dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// put writes a file, and the directories that it needs.
func (t *Tree) put(f File) error {
	place := filepath.Join(t.dir, f.Path)
	err := t.write(f, place)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(place), 0o755); err == nil {
			err = t.write(f, place)
		}
	}
	return err
}

// write writes a temporary file and puts it in the file's place, so that readers see either the old
// or the new content. An empty file cannot be seen in part, and neither can the first files of a
// directory, which Open has not returned yet.
func (t *Tree) write(f File, place string) error {
	if f.Link {
		os.Remove(place)
		return os.Symlink(f.Text, place)
	}
	next := filepath.Join(t.dir, ".next")
	if f.Text == "" || t.updated.IsZero() {
		next = place
	}
	if err := os.WriteFile(next, []byte(f.Text), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(next, 0o644); err != nil { // the umask may have removed bits
		return err
	}
	if next == place {
		return nil
	}
	// A rename over a file makes ext4 write the new one to the disk, which takes milliseconds.
	if unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE) != nil {
		return os.Rename(next, place)
	}
	return os.Remove(next)
}

// Close removes the directory.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var err error
	if t.exists() {
		err = os.RemoveAll(t.dir)
	}
	t.root.Close()
	t.lock.Close()
	return err
}
