package daemon

import (
	"log/slog"
	"os"
	"path/filepath"

	"softroce/internal/tempdir"
)

// StartPrivate starts a daemon with the default NICs on a socket in a new directory, for the
// calling program alone. cleanup closes the daemon and removes the directory.
func StartPrivate(release string) (d *Daemon, cleanup func(), err error) {
	dir, err := os.MkdirTemp(tempdir.ForSocket(), "softroce-")
	if err != nil {
		return nil, nil, err
	}
	d, err = Start(Config{Socket: filepath.Join(dir, "socket"), SocketMode: 0o600}, release, slog.New(slog.DiscardHandler))
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return d, func() { d.Close(); os.RemoveAll(dir) }, nil
}
