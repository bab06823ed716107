package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"softroce/internal/control"
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

// FindOrStart returns the socket of a running daemon: socket, or the default one if socket is
// empty. If socket is empty and no daemon runs, it starts a private one. The caller calls cleanup
// when done.
func FindOrStart(ctx context.Context, socket, release string) (path string, cleanup func(), err error) {
	c, err := control.Dial(ctx, socket)
	if err == nil {
		c.Close()
		return socket, func() {}, nil
	}
	if socket != "" || !errors.Is(err, control.ErrNoDaemon) {
		return "", nil, err
	}
	d, cleanup, err := StartPrivate(release)
	if err != nil {
		return "", nil, err
	}
	return d.Socket(), cleanup, nil
}
