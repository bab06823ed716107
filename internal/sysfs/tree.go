package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A Tree is a directory with the files, for everybody to read. Its zero value is ready; the
// directory comes into being with the first Update. Its methods may be called from any goroutine.
type Tree struct {
	mu      sync.Mutex
	dir     string
	root    *os.File // dir as it was made; while it is open nothing else is taken for it
	lock    *os.File // keeps RemoveDead from the directory
	have    map[string]File
	updated time.Time
	closed  bool
}

// freshness is how old what a tree shows may be.
const freshness = 50 * time.Millisecond

// ErrClosed is returned by Open after Close.
var ErrClosed = errors.New("the tree is closed")

// Open brings the directory up to date with what look returns, unless that was done a moment ago, and
// opens it. Whoever has it open sees the files change, each at once; the caller closes it.
func (t *Tree) Open(look func() []File) (*os.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if !t.stands() {
		if err := t.make(); err != nil {
			return nil, fmt.Errorf("tree of device files: %w", err)
		}
	}
	if time.Since(t.updated) > freshness {
		if err := t.update(look()); err != nil {
			return nil, fmt.Errorf("tree of device files: %w", err)
		}
		t.updated = time.Now()
	}
	return os.Open(t.dir)
}

// stands reports whether the directory is there, and is the one that was made: in a folder for temporary files
// somebody may tidy up, and somebody else may take the name.
func (t *Tree) stands() bool {
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
	t.root.Close() // of the one that is gone; nil is no file
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

// put writes a file beside the tree and then moves it to its place, so that no reader sees half of it.
func (t *Tree) put(f File) error {
	place, next := filepath.Join(t.dir, f.Path), filepath.Join(t.dir, ".next")
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if f.Link {
		os.Remove(place)
		return os.Symlink(f.Text, place)
	}
	if err := os.WriteFile(next, []byte(f.Text), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(next, 0o644); err != nil { // whatever the umask
		return err
	}
	return os.Rename(next, place)
}

// Close removes the directory.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var err error
	if t.stands() {
		err = os.RemoveAll(t.dir)
	}
	t.root.Close()
	t.lock.Close()
	return err
}
