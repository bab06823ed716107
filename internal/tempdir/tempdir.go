// Package tempdir says where files go that are temporary.
package tempdir

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SocketPathSize is sizeof(sockaddr_un.sun_path): a socket's path has a byte less.
const SocketPathSize = 108

// room is for the longest path of a socket that this program makes in a temporary folder of its own there.
const room = len("/softroce-4294967295/socket")

// Path is $TMPDIR, where that is the absolute path of a folder that can be written to; else /tmp.
func Path() string {
	if dir := os.TempDir(); filepath.IsAbs(dir) && writable(dir) {
		return dir
	}
	return fallback
}

// ForSocket is Path, where that leaves room for the path of a socket; else /tmp.
func ForSocket() string {
	if dir := Path(); len(dir)+room < SocketPathSize {
		return dir
	}
	return fallback
}

const fallback = "/tmp"

func writable(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}
