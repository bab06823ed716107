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

// Private starts a daemon with the default NICs for the calling program alone, on a socket
// that nobody else finds. cleanup closes it and removes what it had on disk.
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

// Reach returns the socket of the daemon that runs: at socket, or, where that is empty, at the
// default place. Where none runs there, it starts a private one. cleanup is to be called in the end.
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
