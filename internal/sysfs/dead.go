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

// namePrefix is how the names of trees in the folder of temporary files begin; digits follow.
const namePrefix = "softroce-sysfs-"

// makeTries bounds how often another process may take a directory between its making and its locking.
const makeTries = 100

// Why a directory cannot be locked.
var (
	errTaken   = errors.New("another process has it, or has removed it")
	errNoLocks = errors.New("there are no locks in this file system")
)

// newDir makes a directory that RemoveDead leaves alone for as long as the file is open.
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
		case err == nil || errors.Is(err, errNoLocks): // nobody locks it, so nobody removes it
			return dir, f, nil
		case !errors.Is(err, errTaken):
			os.Remove(dir)
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("a directory in %s: %w, %d times", tmp.Name(), errTaken, makeTries)
}

// lock opens a directory of this user, and locks it until the file is closed. A link is no directory.
func lock(tmp *os.Root, name string) (*os.File, error) {
	f, err := tmp.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, err
	}
	// The name may be gone, or another directory's, since it was opened.
	open, err := f.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = tmp.Lstat(name); err != nil || !os.SameFile(open, named) {
			err = errTaken
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
		return errTaken
	case errors.Is(err, unix.EBADF) || errors.Is(err, errors.ErrUnsupported): // the former is NFS's word for it
		return errNoLocks
	}
	return err
}

// RemoveDead removes the trees of this user that processes left behind which were killed, and returns their paths.
// A tree in use is locked. Where others could move this user's directories about, nothing is removed.
func RemoveDead() (removed []string, err error) {
	tmp, err := os.OpenRoot(tempdir.Path())
	if err != nil {
		return nil, err
	}
	defer tmp.Close()
	folder, err := tmp.Open(".")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if st, err := folder.Stat(); err != nil || !safe(st) {
		return nil, err
	}
	names, err := folder.Readdirnames(-1)
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
			continue // in use, another user's, or no tree
		}
		// Once the name is gone, who waits for the lock finds that out.
		if err := tmp.RemoveAll(name); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, filepath.Join(tmp.Name(), name))
		}
		f.Close()
	}
	return removed, errors.Join(errs...)
}

// safe reports whether nobody but this user and root can rename what this user has in a folder.
func safe(folder os.FileInfo) bool {
	if o := owner(folder); o != 0 && o != os.Geteuid() {
		return false
	}
	return folder.Mode().Perm()&0o022 == 0 || folder.Mode()&os.ModeSticky != 0
}

func owner(f os.FileInfo) int { return int(f.Sys().(*syscall.Stat_t).Uid) }
