package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
)

// Private starts a daemon with the default NICs for the calling program alone. Its socket is
// in a directory of its own, which Close does not remove but cleanup does.
func Private(release string) (d *Daemon, cleanup func(), err error) {
	dir, err := os.MkdirTemp("", "softroce-")
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
