package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/tempdir"
)

// openOutput opens the file of a capture for writing alone, and reports whether it created it. A
// new file is for its user alone. An existing file is truncated; it may also be a device or a FIFO.
// A FIFO without a reader gives ENXIO, and a write to one does not block a thread.
//
// The name of a descriptor of this process, such as /dev/stdout, is that descriptor and is not
// opened again: the file keeps its contents, its offset and O_APPEND, and may be a socket.
//
// In a directory that everyone can write to, such as /tmp, a file, FIFO or symbolic link of another
// user is refused: it may be there to receive the capture, or to have it overwrite another file.
func openOutput(path string) (f *os.File, created bool, err error) {
	if fd, ok := Descriptor(path); ok {
		f, err = Duplicate(fd, path)
		return f, false, err
	}
	const flags = os.O_WRONLY | unix.O_NONBLOCK
	f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return f, err == nil, err
	}
	before, err := os.Lstat(path)
	if err != nil {
		return nil, false, err
	}
	if err := checkOwner(path, before); err != nil {
		return nil, false, err
	}
	follow := unix.O_NOFOLLOW // it is not a link, and must not become one now
	link := before.Mode()&fs.ModeSymlink != 0
	if link {
		follow = os.O_CREATE
	}
	if f, err = os.OpenFile(path, flags|follow, 0o600); err != nil {
		return nil, false, err
	}
	after, err := f.Stat()
	switch {
	case err != nil:
	case !link && !os.SameFile(before, after):
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("another process has replaced the file")}
	case after.Mode().IsRegular():
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, false, err
	}
	return f, false, nil
}

// descriptorNames are the file names that refer to a descriptor of the process that uses them;
// those that end in a slash are followed by its number.
var descriptorNames = map[string]string{
	"/dev/fd/": "", "/proc/self/fd/": "", "/proc/thread-self/fd/": "", "/dev/stdin": "0", "/dev/stdout": "1", "/dev/stderr": "2",
}

// Descriptor returns the descriptor of this process that a file name refers to. ok is false if it
// refers to none.
func Descriptor(path string) (fd int, ok bool) {
	for name, number := range descriptorNames {
		rest, found := strings.CutPrefix(path, name)
		if !found || (rest == "") == (number == "") {
			continue
		}
		n, err := strconv.ParseUint(number+rest, 10, 31)
		return int(n), err == nil
	}
	return 0, false
}

// Duplicate returns a file with a close-on-exec duplicate of a descriptor.
func Duplicate(fd int, name string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(n), name), nil
}

// checkOwner refuses what another user has put in a directory that everyone can write to.
func checkOwner(path string, info fs.FileInfo) error {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	if dir.Mode()&fs.ModeSticky == 0 || dir.Mode().Perm()&0o002 == 0 {
		return nil
	}
	owner := tempdir.OwnerOf(info)
	if owner == os.Geteuid() || owner == tempdir.OwnerOf(dir) {
		return nil
	}
	return &fs.PathError{Op: "open", Path: path,
		Err: fmt.Errorf("belongs to user %d; name a file of your own, or one in another directory: %w", owner, fs.ErrPermission)}
}
