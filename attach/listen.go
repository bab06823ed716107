package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
)

// ListenConfig says where a server listens.
type ListenConfig struct {
	Path  string      // "" means control.SocketPath("")
	Mode  os.FileMode // permissions of the socket; 0 means DefaultMode
	Group string      // group of the socket, by name or number; "" means the process's
}

// DefaultMode lets the daemon's user and group attach.
const DefaultMode fs.FileMode = 0o660

// ErrInUse is returned by Listen if another daemon serves the socket.
var ErrInUse = errors.New("another daemon serves this socket")

// A listener accepts clients on one socket.
type listener struct {
	sock   *net.UnixListener
	path   string
	inode  uint64
	server *Server

	mu     sync.Mutex
	closed bool
	spare  *os.File // closed to make room for one connection when descriptors run out
}

// Listen creates a socket, serves clients on it, and returns its path. It replaces a socket that a
// dead daemon left behind; for one that is served it returns ErrInUse. The directory must exist,
// except the one of the default path. Server.Close closes the socket.
func (s *Server) Listen(c ListenConfig) (path string, err error) {
	path = control.SocketPath(c.Path)
	if c.Mode == 0 {
		c.Mode = DefaultMode
	}
	l, err := s.listen(path, c)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) {
		return path, fmt.Errorf("cannot create the socket %s: %w; choose a directory that you can write to, "+
			"with --socket or %s, for the daemon and for programs", path, errnoOf(err), control.SocketEnv)
	}
	if err != nil {
		return path, fmt.Errorf("cannot listen on %s: %w", path, errnoOf(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.close()
		return path, net.ErrClosed
	}
	s.listeners[l] = struct{}{}
	s.running.Go(l.accept)
	return path, nil
}

// errnoOf reduces the error of a system call to its errno, as the caller's message has the path.
func errnoOf(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

func (s *Server) listen(path string, c ListenConfig) (*listener, error) {
	if err := control.CheckPath(path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if path == control.DefaultSocket {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	// The lock makes sure that of several daemons that start at once, only the first replaces an
	// old socket.
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l := &listener{path: path, server: s}
	if l.sock, err = bind(path, c); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		l.sock.Close()
		return nil, err
	}
	l.inode = st.Ino
	l.spare, _ = os.Open(os.DevNull)
	return l, nil
}

// removeStale removes a socket that no process listens on.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("a file of this name exists and is not a socket: %w", fs.ErrExist)
	}
	sock, err := net.Dial("unixpacket", path)
	if err == nil {
		sock.Close()
		return ErrInUse
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return ErrInUse // a socket that we may not connect to
	}
	return os.Remove(path)
}

// bind creates the socket. No other user can connect before its group and mode are set.
func bind(path string, c ListenConfig) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, err
	}
	sock := l.(*net.UnixListener)
	sock.SetUnlinkOnClose(false)
	if err := setPermissions(path, c); err != nil {
		sock.Close()
		os.Remove(path)
		return nil, err
	}
	return sock, nil
}

func setPermissions(path string, c ListenConfig) error {
	if c.Group != "" {
		gid, err := groupID(c.Group)
		if err != nil {
			return err
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return fmt.Errorf("group %s: %w", c.Group, err)
		}
	}
	return os.Chmod(path, c.Mode.Perm())
}

func groupID(name string) (int, error) {
	if g, err := user.LookupGroup(name); err == nil {
		return strconv.Atoi(g.Gid)
	}
	gid, err := strconv.Atoi(name)
	if err != nil || gid < 0 {
		return 0, fmt.Errorf("no group %q", name)
	}
	return gid, nil
}

// acceptPause is the delay after a failed accept.
const acceptPause = 20 * time.Millisecond

func (l *listener) accept() {
	for {
		sock, err := l.sock.AcceptUnix()
		switch {
		case err == nil:
			if err := l.server.ServeConn(sock); err != nil {
				l.server.log.Warn("client rejected", "reason", err)
			}
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
			l.server.log.Warn("cannot accept a client: no descriptors left", "reason", err)
			l.rejectOne()
			time.Sleep(acceptPause)
		default:
			l.server.log.Warn("accept failed", "reason", err)
			time.Sleep(acceptPause)
		}
	}
}

// rejectOne tells the first client in the queue that the daemon has no descriptors left. Without a
// reply the client would wait until some are free. It uses the descriptor that was reserved for
// this.
func (l *listener) rejectOne() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.spare == nil {
		l.spare, _ = os.Open(os.DevNull) // another goroutine took the descriptor last time
		return
	}
	l.spare.Close()
	l.sock.SetDeadline(time.Now().Add(acceptPause))
	sock, err := l.sock.AcceptUnix()
	l.sock.SetDeadline(time.Time{})
	l.spare, _ = os.Open(os.DevNull)
	if err != nil {
		return
	}
	if l.spare != nil { // descriptors have become free since
		if err := l.server.ServeConn(sock); err != nil {
			l.server.log.Warn("client rejected", "reason", err)
		}
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer sock.Close() // may wait: see conn.cleanup
		c := newConn(l.server, sock, peer{pidfd: -1})
		c.sendGoodbye(errorf(syscall.EMFILE, "the daemon has no descriptors left"))
	}()
	select {
	case <-closed:
	case <-time.After(acceptPause):
	}
	l.spare, _ = os.Open(os.DevNull)
}

// close ends the accept loop, and removes the socket unless another daemon has replaced it.
func (l *listener) close() error {
	var st unix.Stat_t
	if unix.Lstat(l.path, &st) == nil && st.Ino == l.inode {
		os.Remove(l.path)
	}
	err := l.sock.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.spare != nil {
		l.spare.Close()
	}
	return err
}
