package run

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/tempdir"
)

// LibraryEnv is the environment variable that names the directory of the libraries.
const LibraryEnv = "SOFTROCE_LIBDIR"

// verbsLibrary must be in a directory of libraries. The others are optional.
const verbsLibrary = "libibverbs.so.1"

// sonames are the libraries to preload, in this order.
var sonames = []string{verbsLibrary, "librdmacm.so.1"}

// ErrNoLibraries is returned if no libraries are installed with this binary or embedded in it.
var ErrNoLibraries = errors.New("no libraries for programs")

// embedded are the libraries that this binary was built with, in a directory per architecture
// (GOARCH). It may be empty.
//
//go:embed all:lib
var embedded embed.FS

// libraries returns the directory of the libraries. cleanup removes it if it is temporary.
func libraries() (dir string, cleanup func(), err error) {
	keep := func() {}
	if dir := os.Getenv(LibraryEnv); dir != "" {
		if dir, err = filepath.Abs(dir); err == nil {
			_, err = os.Stat(filepath.Join(dir, verbsLibrary))
		}
		if err == nil {
			err = checkMount(dir)
		}
		if err != nil {
			return "", nil, fmt.Errorf("%w: %s: %w", ErrNoLibraries, LibraryEnv, err)
		}
		return dir, keep, nil
	}
	if dir, ok := installedLibraries(); ok && checkMount(dir) == nil {
		return dir, keep, nil
	}
	files, err := embeddedLibraries()
	if err != nil {
		return "", nil, err
	}
	return unpack(files)
}

// Libraries returns the C libraries with which Run would run a program.
func Libraries() (fs.FS, error) {
	if dir := os.Getenv(LibraryEnv); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, verbsLibrary)); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrNoLibraries, LibraryEnv, err)
		}
		return os.DirFS(dir), nil
	}
	if dir, ok := installedLibraries(); ok {
		return os.DirFS(dir), nil
	}
	return embeddedLibraries()
}

func embeddedLibraries() (fs.FS, error) {
	files, err := fs.Sub(embedded, path.Join("lib", runtime.GOARCH))
	if err == nil {
		_, err = fs.Stat(files, verbsLibrary)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: this softroce was built without them (run `make libs` before `go build` or `go install`), "+
			"and %s does not name a directory that contains them", ErrNoLibraries, LibraryEnv)
	}
	return files, nil
}

// installedLibraries returns the directory of the libraries that were installed with this binary.
// It must be out of reach for users that could not have replaced the binary either: the parent of
// the binary's directory may be /tmp.
func installedLibraries() (string, bool) {
	exe, err := os.Executable()
	if err != nil {
		return "", false
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", false
	}
	dir := filepath.Join(filepath.Dir(exe), "../lib/softroce")
	library := filepath.Join(dir, verbsLibrary)
	self, err := os.Stat(exe)
	if err != nil || !tempdir.Trusted(library, tempdir.OthersWrite, tempdir.OwnerOf(self)) {
		return "", false
	}
	_, err = os.Stat(library)
	return dir, err == nil
}

// unpack writes the files to the user's cache, unless they are there already. If the cache cannot
// be used, or another user can write to it (the home directory may be that of the user who called
// sudo), it writes them to a temporary directory, which cleanup removes.
func unpack(files fs.FS) (dir string, cleanup func(), err error) {
	name, err := fingerprint(files)
	if err != nil {
		return "", nil, err
	}
	if cache, err := os.UserCacheDir(); err == nil && validSearchPath(cache) {
		dir := filepath.Join(cache, "softroce", name)
		if tempdir.Trusted(dir, tempdir.GroupAndOthersWrite) && (intact(files, dir) || install(files, dir) == nil) && checkMount(dir) == nil {
			return dir, func() {}, nil
		}
	}
	if dir, err = os.MkdirTemp(tempdir.ForPrivate(), "softroce-lib-"); err != nil {
		return "", nil, err
	}
	cleanup = func() { os.RemoveAll(dir) }
	if err = write(files, dir); err == nil {
		err = checkMount(dir)
	}
	if err != nil {
		cleanup()
		return "", nil, fmt.Errorf("libraries: %w", err)
	}
	return dir, cleanup, nil
}

// validSearchPath reports whether LD_LIBRARY_PATH, which has no quoting, can contain a directory.
func validSearchPath(dir string) bool { return !strings.ContainsAny(dir, ":; ") }

// stNoExec is ST_NOEXEC of statfs(2): the file system is mounted noexec.
const stNoExec = 8

// checkMount returns an error if the dynamic linker cannot map libraries of a directory as
// executable.
func checkMount(dir string) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Flags&stNoExec != 0 {
		return fmt.Errorf("%s is on a file system that is mounted noexec: set TMPDIR to a directory on another one, or %s to a directory that contains the libraries",
			dir, LibraryEnv)
	}
	return nil
}

// fingerprint returns a directory name derived from a hash of the files.
func fingerprint(files fs.FS) (string, error) {
	h := sha256.New()
	err := forEachFile(files, func(name string, text []byte) error {
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		_, err := h.Write(text)
		return err
	})
	return fmt.Sprintf("lib-%x", h.Sum(nil)[:8]), err
}

// forEachFile calls f with each library.
func forEachFile(files fs.FS, f func(name string, text []byte) error) error {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := fs.ReadFile(files, e.Name())
		if err != nil {
			return err
		}
		if err := f(e.Name(), text); err != nil {
			return err
		}
	}
	return nil
}

// intact reports whether a directory contains the libraries byte for byte (a full disk may have
// truncated them), their links, and nothing else that the dynamic linker could load.
func intact(files fs.FS, dir string) bool {
	expected := 0
	err := forEachFile(files, func(name string, want []byte) error {
		expected++
		file := filepath.Join(dir, name)
		if stem, _, ok := strings.Cut(name, ".so."); ok {
			expected++
			if target, err := os.Readlink(filepath.Join(dir, stem+".so")); err != nil || target != name {
				return fs.ErrInvalid
			}
		}
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() || !tempdir.Trusted(file, tempdir.GroupAndOthersWrite) {
			return fs.ErrInvalid
		}
		got, err := os.ReadFile(file)
		if err == nil && !bytes.Equal(got, want) {
			err = fs.ErrInvalid
		}
		return err
	})
	entries, readErr := os.ReadDir(dir)
	return err == nil && readErr == nil && len(entries) == expected
}

// install creates the directory dir with the libraries atomically: another process may do the same
// at this moment.
func install(files fs.FS, dir string) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := write(files, tmp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if os.Rename(tmp, dir) == nil || intact(files, dir) {
		return nil
	}
	// The existing directory is damaged. Running programs keep its files open.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// write writes the libraries, and a symbolic link without version number for each, for programs
// that dlopen libibverbs.so.
func write(files fs.FS, dir string) error {
	return forEachFile(files, func(name string, text []byte) error {
		if stem, _, ok := strings.Cut(name, ".so."); ok {
			if err := os.Symlink(name, filepath.Join(dir, stem+".so")); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, name), text, 0o755)
	})
}
