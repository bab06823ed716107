// Package tempdir chooses the directory for temporary files, and says which directories are safe
// from other users.
package tempdir

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SocketPathSize is sizeof(sockaddr_un.sun_path). A socket's path is at least one byte shorter.
const SocketPathSize = 108

// socketRoom is the length of the longest socket path below the directory.
const socketRoom = len("/softroce-4294967295.9/socket")

// Path returns $TMPDIR if it is the absolute path of a writable directory, or else /tmp.
func Path() string {
	if dir := os.TempDir(); filepath.IsAbs(dir) && writable(dir) {
		return dir
	}
	return fallback
}

// ForPrivate returns Path if no other user can replace what is in it, or else /tmp, which is
// sticky.
func ForPrivate() string {
	if dir := Path(); Trusted(dir, OthersWrite) {
		return dir
	}
	return fallback
}

// ForSocket returns ForPrivate if it leaves room for the path of a socket, or else /tmp.
func ForSocket() string {
	if dir := ForPrivate(); len(dir)+socketRoom < SocketPathSize {
		return dir
	}
	return fallback
}

const fallback = "/tmp"

func writable(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}
