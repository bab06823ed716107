package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/tempdir"
)

// namePrefix and digits are the names of trees in the directory for temporary files.
const namePrefix = "softroce-sysfs-"

// makeTries bounds how often another process may remove a new directory before it is locked.
const makeTries = 100

// Reasons why a directory cannot be locked.
var (
	errInUse   = errors.New("another process has locked or removed it")
	errNoLocks = errors.New("the file system has no locks")
)

// newDir creates a directory. RemoveStale does not remove it while the file is open.
func newDir() (string, *os.File, error) {
	tmp, err := os.OpenRoot(tempdir.Path())
	if err != nil {
		return "", nil, err
	}
	defer tmp.Close()
	for range makeTries {
		dir, err := os.MkdirTemp(tmp.Name(), namePrefix)
		if err != nil {
			return "", nil, err
		}
		f, err := lock(tmp, filepath.Base(dir))
		switch {
		case err == nil || errors.Is(err, errNoLocks): // without locks, RemoveStale removes nothing
			return dir, f, nil
		case !errors.Is(err, errInUse):
			os.Remove(dir)
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("cannot create a directory in %s: %w (tried %d times)", tmp.Name(), errInUse, makeTries)
}

// lock opens a directory of this user and locks it until the file is closed. It does not follow
// symbolic links.
func lock(tmp *os.Root, name string) (*os.File, error) {
	f, err := tmp.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errInUse
	}
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, err
	}
	// The name may have been removed or reused since it was opened.
	open, err := f.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = tmp.Lstat(name); err != nil || !os.SameFile(open, named) {
			err = errInUse
		} else if owner(open) != os.Geteuid() {
			err = unix.EPERM
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errInUse
	case errors.Is(err, unix.EBADF) || errors.Is(err, errors.ErrUnsupported): // NFS returns the former
		return errNoLocks
	}
	return err
}

// RemoveStale removes the trees that killed processes of this user left behind, and returns their
// paths. Trees in use are locked. It removes nothing if other users can rename directories of this
// user.
func RemoveStale() (removed []string, err error) {
	tmp, err := os.OpenRoot(tempdir.Path())
	if err != nil {
		return nil, err
	}
	defer tmp.Close()
	dir, err := tmp.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if st, err := dir.Stat(); err != nil || !renameSafe(st) {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, namePrefix)
		if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		f, err := lock(tmp, name)
		if err != nil {
			continue // in use, another user's, or not a tree
		}
		// A process that waits for the lock notices that the name is gone.
		if err := tmp.RemoveAll(name); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, filepath.Join(tmp.Name(), name))
		}
		f.Close()
	}
	return removed, errors.Join(errs...)
}

// renameSafe reports whether only this user and root can rename this user's files in a directory.
func renameSafe(dir os.FileInfo) bool {
	if o := owner(dir); o != 0 && o != os.Geteuid() {
		return false
	}
	return dir.Mode().Perm()&0o022 == 0 || dir.Mode()&os.ModeSticky != 0
}

func owner(f os.FileInfo) int { return int(f.Sys().(*syscall.Stat_t).Uid) }
