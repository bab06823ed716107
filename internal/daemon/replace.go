package daemon

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Replace writes a file as a whole: until write has returned without an error, the file keeps its
// contents, and no reader sees a part of the new ones. A new file is for its user alone, an
// existing one keeps its permissions. A symbolic link stays, and what it leads to is replaced. What
// cannot be replaced, such as a FIFO or a descriptor of this process, is written to.
//
// In a directory that everyone can write to, what belongs to another user is refused, as by
// openOutput.
func Replace(path string, write func(io.Writer) error) error {
	if fd, ok := Descriptor(path); ok {
		f, err := Duplicate(fd, path)
		if err != nil {
			return err
		}
		return writeClose(f, write)
	}
	info, err := os.Lstat(path)
	if err == nil {
		err = checkOwner(path, info)
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		var target string
		if target, err = filepath.EvalSymlinks(path); err == nil {
			path = target
			info, err = os.Stat(path)
		}
	}
	mode := fs.FileMode(0o600)
	switch {
	case errors.Is(err, fs.ErrNotExist) && info == nil:
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: unix.EISDIR}
	case !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		return writeClose(f, write)
	default:
		mode = info.Mode().Perm()
		if err := unix.Access(path, unix.W_OK); err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".softroce-*")
	if err != nil {
		return err
	}
	err = errors.Join(f.Chmod(mode), writeClose(f, write))
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func writeClose(f *os.File, write func(io.Writer) error) error {
	b := bufio.NewWriter(f)
	err := write(b)
	if err == nil {
		err = b.Flush()
	}
	return errors.Join(err, f.Close())
}
