package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/tempdir"
)

// A Found is a daemon that Find has connected to.
type Found struct {
	*Client
	Socket string   // an absolute path
	Denied []string // the sockets that come before it but deny access to this user
}

// Find connects to the daemon that a command uses: the one on the socket that named or
// $SOFTROCE_SOCKET names, or else the first one on Sockets.
func Find(ctx context.Context, named string) (*Found, error) {
	if named = Named(named); named != "" {
		c, err := dialServing(ctx, named)
		if err != nil {
			return nil, err
		}
		return &Found{Client: c, Socket: Absolute(named)}, nil
	}
	var f Found
	sockets := Sockets()
	for _, s := range sockets {
		c, err := dialServing(ctx, s)
		switch {
		case err == nil:
			f.Client, f.Socket = c, s
			return &f, nil
		case errors.Is(err, syscall.EACCES):
			f.Denied = append(f.Denied, s)
		case !errors.Is(err, ErrNoDaemon):
			return nil, err
		}
	}
	if len(f.Denied) > 0 {
		return nil, &NotFoundError{Denied: f.Denied, Tried: slices.DeleteFunc(sockets, func(s string) bool { return slices.Contains(f.Denied, s) })}
	}
	return nil, &NotFoundError{Tried: sockets}
}

// A NotFoundError is returned by Find if no socket is named and no daemon serves this user. It
// matches ErrNoDaemon.
type NotFoundError struct {
	Tried  []string // sockets that no process listens on
	Denied []string // sockets that deny access to this user
}

func (e *NotFoundError) Error() string {
	text := ErrNoDaemon.Error()
	if len(e.Tried) > 0 {
		text += " on " + strings.Join(e.Tried, " or ")
	}
	if len(e.Denied) > 0 {
		text += fmt.Sprintf(", and the one on %s denies access to this user", strings.Join(e.Denied, " and "))
	}
	return text
}

func (e *NotFoundError) Unwrap() error { return ErrNoDaemon }

// Named returns the socket that path or $SOFTROCE_SOCKET names, or an empty string.
func Named(path string) string { return cmp.Or(path, os.Getenv(SocketEnv)) }

// Absolute returns the absolute form of a path.
func Absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// How often dialServing retries while a daemon shuts down, and the pause between two attempts.
const (
	closingRetries = 100
	closingPause   = 10 * time.Millisecond
)

// dialServing is dialPath. If the daemon is shutting down because its last client has left, it
// waits until the daemon is gone. It retries a limited number of times, because a daemon that is
// closing may also refuse clients for other reasons.
func dialServing(ctx context.Context, socket string) (c *Client, err error) {
	for range closingRetries {
		c, err = dialPath(ctx, socket)
		if !errors.Is(err, ErrGone) || ctx.Err() != nil {
			break
		}
		time.Sleep(closingPause)
	}
	return c, err
}

// Sockets returns where a daemon is looked for if no socket is named, in this order: DefaultSocket,
// then the sockets in this user's directories. The C libraries do the same (libverbs/core/find.c).
func Sockets() []string {
	list := []string{DefaultSocket}
	for _, d := range userDirs() {
		if checkPrivate(d) == nil {
			list = append(list, filepath.Join(d, userSocket))
		}
	}
	return list
}

// userSocket is the name of the socket in a user's directory.
const userSocket = "socket"

// userDirNames is how many names in a directory for temporary files a user's directory may have:
// another user may have taken the first ones.
const userDirNames = 10

// userDirs returns the directories that a user's socket may be in, in the order in which they are
// tried: $XDG_RUNTIME_DIR/softroce, and softroce-UID, or softroce-UID.N with the first N that no
// other user has taken, in $TMPDIR, or in /tmp if that cannot be used. They need not exist.
func userDirs() (list []string) {
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(runtime) && owned(runtime) {
		if dir := filepath.Join(runtime, "softroce"); len(dir)+1+len(userSocket) < tempdir.SocketPathSize {
			list = append(list, dir)
		}
	}
	usual := filepath.Join(tempdir.ForSocket(), userDirName())
	list = append(list, usual)
	for n := 1; n < userDirNames; n++ {
		list = append(list, fmt.Sprintf("%s.%d", usual, n))
	}
	return list
}

// owned reports whether a directory belongs to this user, and no other user can replace it or a
// link in its path. After su, XDG_RUNTIME_DIR may name that of another user.
func owned(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && tempdir.OwnerOf(info) == os.Geteuid() && tempdir.Trusted(dir, tempdir.OthersWrite)
}

func userDirName() string { return "softroce-" + strconv.Itoa(os.Geteuid()) }

// UserSocket returns the socket of the daemon that this user's programs share, in a directory that
// it creates if necessary and that only this user has access to. taken is the directory that it
// would have used if it were not another user's or open to others, or an empty string.
func UserSocket() (socket, taken string, err error) {
	for _, d := range userDirs() {
		switch dirErr := makePrivate(d); {
		case dirErr == nil:
			return filepath.Join(d, userSocket), taken, nil
		case errors.Is(dirErr, unix.EPERM):
			taken = cmp.Or(taken, d)
		}
	}
	return "", taken, fmt.Errorf("%w: no directory for a socket, such as %s", fs.ErrPermission, filepath.Join(tempdir.ForSocket(), userDirName()))
}

// makePrivate creates a directory, unless it exists, for this user alone.
func makePrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkPrivate(dir)
}

// checkPrivate checks that only this user has access to a directory.
func checkPrivate(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return unix.EPERM
	}
	return nil
}

// ListenSocket returns the socket of a daemon for which none is named: DefaultSocket if this user
// may create it, or else the user's own.
func ListenSocket() (string, error) {
	dir := filepath.Dir(DefaultSocket)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir)
	}
	if unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil {
		return DefaultSocket, nil
	}
	socket, _, err := UserSocket()
	return socket, err
}
