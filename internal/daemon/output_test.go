package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNewCaptureIsForItsUserAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new.pcapng")
	f, created, err := openOutput(path)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want -rw-------", info.Mode(), err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_WRONLY {
		t.Errorf("flags %#x, %v; want O_WRONLY", flags, err)
	}
}

func TestExistingCaptureIsReplacedAndKeepsItsMode(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "old.pcapng"), filepath.Join(dir, "link")
	for _, name := range []string{path, link} {
		if err := os.WriteFile(path, []byte("an old capture"), 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, link); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		f, created, err := openOutput(name)
		if err != nil || created {
			t.Fatalf("%s: created %v, %v", name, created, err)
		}
		f.Close()
		if info, err := os.Stat(path); err != nil || info.Size() != 0 || info.Mode() != 0o640 {
			t.Errorf("%s: %d bytes, mode %v, %v", name, info.Size(), info.Mode(), err)
		}
	}
}

// Standard output of a program may be any file, and may have contents already.
func TestDescriptorIsNotOpenedAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "all")
	if err := os.WriteFile(path, []byte("old "), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	for _, c := range []struct {
		name string
		fd   int
	}{{"/dev/fd/", int(file.Fd())}, {"/proc/self/fd/", pair[0]}} {
		f, created, err := openOutput(c.name + strconv.Itoa(c.fd))
		if err != nil || created {
			t.Fatalf("created %v, %v", created, err)
		}
		if _, err := f.WriteString("new"); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "old new" {
		t.Errorf("file: %q, %v", text, err)
	}
	text := make([]byte, 10)
	if n, err := unix.Read(pair[1], text); err != nil || string(text[:n]) != "new" {
		t.Errorf("socket: %q, %v", text[:n], err)
	}
	if _, _, err := openOutput("/dev/fd/99999"); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed descriptor: %v", err)
	}
}

func TestFIFOWithoutReaderIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openOutput(path); !errors.Is(err, unix.ENXIO) {
		t.Errorf("got %v, want ENXIO", err)
	}
}

// TestPlantedCapturesAreRefused puts files of another user where the capture is to be written.
func TestPlantedCapturesAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can create files of another user")
	}
	const stranger = 12345
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	plant := map[string]func(path string) error{
		"a file":    func(path string) error { return os.WriteFile(path, []byte("planted"), 0o666) },
		"a FIFO":    func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a symlink": func(path string) error { return os.Symlink(own, path) },
	}
	for _, c := range []struct {
		mode    os.FileMode
		refused bool
	}{{0o777 | os.ModeSticky, true}, {0o755, false}} {
		for name, create := range plant {
			path := filepath.Join(dir, "planted")
			os.Remove(path)
			if err := os.WriteFile(own, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(create(path), os.Lchown(path, stranger, stranger), os.Chmod(dir, c.mode)); err != nil {
				t.Fatal(err)
			}
			f, _, err := openOutput(path)
			if err == nil {
				f.Close()
			}
			refused := err != nil && strings.Contains(err.Error(), "belongs to user 12345") && errors.Is(err, fs.ErrPermission)
			if refused != c.refused {
				t.Errorf("%s in a directory of mode %v: %v", name, c.mode, err)
			}
			if text, err := os.ReadFile(own); c.refused && (err != nil || string(text) != "precious") {
				t.Errorf("%s: the file behind it is %q, %v", name, text, err)
			}
		}
	}
}
