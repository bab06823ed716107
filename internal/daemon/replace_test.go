package daemon

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReplaceIsAtomic(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "page"), filepath.Join(dir, "link")
	if err := Replace(file, put("old")); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(file); st.Mode() != 0o600 {
		t.Errorf("a new file has mode %v", st.Mode())
	}
	os.Chmod(file, 0o644)
	broken := errors.New("broken")
	err := Replace(file, func(w io.Writer) error { io.WriteString(w, "half"); return broken })
	if !errors.Is(err, broken) || read(t, file) != "old" {
		t.Errorf("after %v: %q", err, read(t, file))
	}
	err = Replace(file, func(w io.Writer) error {
		if read(t, file) != "old" {
			t.Error("the file has changed before it is complete")
		}
		return put("new")(w)
	})
	if st, _ := os.Stat(file); err != nil || read(t, file) != "new" || st.Mode() != 0o644 {
		t.Errorf("%v: %q, mode %v", err, read(t, file), st.Mode())
	}
	if err := os.Symlink("page", link); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, put("linked")); err != nil || read(t, file) != "linked" {
		t.Errorf("%v: %q", err, read(t, file))
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", st)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".softroce-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Replace(dir, put("")); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a directory: %v", err)
	}
	if err := os.Symlink("nothing", link+"2"); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link+"2", put("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link that leads nowhere: %v", err)
	}
	if err := Replace("/dev/null", put("x")); err != nil {
		t.Errorf("a device: %v", err)
	}
	if st, err := os.Stat("/dev/null"); err != nil || st.Mode()&fs.ModeCharDevice == 0 {
		t.Fatalf("/dev/null was replaced: %v", st)
	}
}

// What another user has put into a directory such as /tmp may be there to receive the page, or to
// have it overwrite something.
func TestReplaceRefusesWhatOthersHaveLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make files of another user")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"file": func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"link": func(path string) error { return os.Symlink(own, path) },
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o666) },
	} {
		path := filepath.Join(dir, name)
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Lchown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := Replace(path, put("secret")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of another user: %v", name, err)
		}
	}
	if read(t, own) != "own" {
		t.Error("a link has led to another file")
	}
}
