package check

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"softroce/internal/control"
)

// TestLibraryLooksWhereCommandsLook has listeners on every socket that may be a user's, each of
// which ends when a client connects: so the library's order shows.
func TestLibraryLooksWhereCommandsLook(t *testing.T) {
	if _, err := os.Stat(control.DefaultSocket); err == nil {
		t.Skip("left out: a daemon runs on this machine")
	}
	program := compile(t, "find")
	top, err := os.MkdirTemp("/tmp", "softroce-find-") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	const stranger = 12345
	for _, c := range []struct {
		name    string
		prepare func(tmp, session string) error // nil: none
		tmp     string                          // of TMPDIR, in place of tmp
		session string                          // of XDG_RUNTIME_DIR, in place of session
		want    int                             // how many of the sockets are looked at
		root    bool
	}{
		{name: "usual", want: 4},
		{name: "no session", session: "-", want: 3},
		{name: "no temporary directory", tmp: "-", want: 1},
		{name: "relative session", session: "session", want: 3},
		{name: "relative temporary directory", tmp: "tmp", want: 1},
		{name: "directory open to others", want: 3, prepare: func(tmp, _ string) error { return os.Chmod(filepath.Join(tmp, userDir()), 0o755) }},
		{name: "socket's directory is a link", want: 3, prepare: func(_, session string) error {
			return replaceByLink(filepath.Join(session, "softroce"))
		}},
		{name: "session that others can write to", want: 3, prepare: func(_, session string) error { return os.Chmod(session, 0o777) }},
		{name: "temporary directory that others can write to", want: 1, prepare: func(tmp, _ string) error { return os.Chmod(tmp, 0o777) }},
		{name: "sticky temporary directory", want: 4, prepare: func(tmp, _ string) error { return os.Chmod(tmp, 0o777|os.ModeSticky) }},
		{name: "temporary directory that cannot be written", tmp: "/proc", want: 1},
		{name: "own links", want: 4, prepare: func(tmp, session string) error {
			if err := replaceByLink(tmp); err != nil {
				return err
			}
			return replaceByLink(session)
		}},
		{name: "directory of another user", want: 3, root: true, prepare: func(tmp, _ string) error {
			return os.Chown(filepath.Join(tmp, userDir()), stranger, -1)
		}},
		{name: "session of another user", want: 3, root: true, prepare: func(_, session string) error { return os.Chown(session, stranger, -1) }},
		{name: "links of another user", want: 0, root: true, prepare: func(tmp, session string) error {
			for _, dir := range []string{tmp, session} {
				if err := replaceByLink(dir); err != nil {
					return err
				}
				if err := os.Lchown(dir, stranger, -1); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Getuid() != 0 {
				t.Skip("left out: only root can create files of another user")
			}
			dir, err := os.MkdirTemp(top, "")
			if err != nil {
				t.Fatal(err)
			}
			tmp, session := filepath.Join(dir, "tmp"), filepath.Join(dir, "session")
			listeners := map[string]net.Listener{}
			for _, d := range []string{
				filepath.Join(session, "softroce"), filepath.Join(tmp, userDir()), filepath.Join(tmp, userDir()+".1"), filepath.Join(tmp, userDir()+".9"),
			} {
				if err := os.MkdirAll(d, 0o700); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(d, "socket")
				l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
				if err != nil {
					t.Fatal(err)
				}
				listeners[path] = l
				defer l.Close()
			}
			if c.prepare != nil {
				if err := c.prepare(tmp, session); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("TMPDIR", orElse(c.tmp, tmp))
			t.Setenv("XDG_RUNTIME_DIR", orElse(c.session, session))
			var want []string // of what serves, in the order of the commands
			for _, s := range control.Sockets() {
				if listeners[s] != nil {
					want = append(want, s)
				}
			}
			if len(want) != c.want {
				t.Errorf("the commands look at %q, want %d of them", want, c.want)
			}
			if got := lookedAt(t, program, listeners); !slices.Equal(got, want) {
				t.Errorf("the library looks at %q, the commands at %q", got, want)
			}
		})
	}
}

func userDir() string { return fmt.Sprintf("softroce-%d", os.Geteuid()) }

// orElse returns the value of a variable: s, the usual one if s is empty, or none for "-".
func orElse(s, usual string) string {
	switch s {
	case "":
		return usual
	case "-":
		return ""
	}
	return s
}

// replaceByLink moves a directory and puts a link to it in its place.
func replaceByLink(dir string) error {
	if err := os.Rename(dir, dir+"-real"); err != nil {
		return err
	}
	return os.Symlink(dir+"-real", dir)
}

// lookedAt runs the program until it connects to none of the listeners, and returns those to which
// it has connected, in this order.
func lookedAt(t *testing.T, program string, listeners map[string]net.Listener) (paths []string) {
	t.Helper()
	connected := make(chan string, len(listeners))
	for path, l := range listeners {
		go func() {
			if c, err := l.Accept(); err == nil {
				l.Close()
				connected <- path
				c.Close()
			}
		}()
	}
	for {
		if out, err := command(t, "", program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		select {
		case path := <-connected:
			paths = append(paths, path)
		default:
			return paths
		}
	}
}
