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

// LibraryEnv is the environment variable that names the folder of the libraries.
const LibraryEnv = "SOFTROCE_LIBDIR"

// verbsLibrary is what a folder of libraries must have. The others are there or not.
const verbsLibrary = "libibverbs.so.1"

// sonames are the libraries to preload, in this order.
var sonames = []string{verbsLibrary, "librdmacm.so.1"}

// ErrNoLibraries is returned where this binary neither has the libraries beside it nor in it.
var ErrNoLibraries = errors.New("no libraries for programs")

// embedded are the libraries that this binary was built with, in a folder for each
// architecture (GOARCH). What is not there when the binary is built is not in it.
//
//go:embed all:lib
var embedded embed.FS

// libraries returns the folder of the libraries. cleanup removes what is not to stay.
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
	files, err := fs.Sub(embedded, path.Join("lib", runtime.GOARCH))
	if err == nil {
		_, err = fs.Stat(files, verbsLibrary)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%w: this softroce was built without them (run `make libs` before `go build` or `go install`), "+
			"and %s does not name a directory that contains them", ErrNoLibraries, LibraryEnv)
	}
	return unpack(files)
}

// beside finds the libraries that were installed with this binary.
func installedLibraries() (string, bool) {
	exe, err := os.Executable()
	if err != nil {
		return "", false
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", false
	}
	dir := filepath.Join(filepath.Dir(exe), "../lib/softroce")
	_, err = os.Stat(filepath.Join(dir, verbsLibrary))
	return dir, err == nil
}

// unpack puts the files into the user's cache, if they are not there yet, or, where there is
// no cache that can be used, into a temporary folder that cleanup removes.
func unpack(files fs.FS) (dir string, cleanup func(), err error) {
	name, err := fingerprint(files)
	if err != nil {
		return "", nil, err
	}
	if cache, err := os.UserCacheDir(); err == nil && validSearchPath(cache) {
		dir := filepath.Join(cache, "softroce", name)
		if (intact(files, dir) || install(files, dir) == nil) && checkMount(dir) == nil {
			return dir, func() {}, nil
		}
	}
	if dir, err = os.MkdirTemp(tempdir.Path(), "softroce-lib-"); err != nil {
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

// usable reports whether the dynamic linker can be told of a folder: LD_LIBRARY_PATH has no way
// to quote.
func validSearchPath(dir string) bool { return !strings.ContainsAny(dir, ":; ") }

// stNoExec is ST_NOEXEC of statfs(2): the file system is mounted so that nothing on it can be executed.
const stNoExec = 8

// mappable wants the dynamic linker to be able to load libraries from a folder.
func checkMount(dir string) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Flags&stNoExec != 0 {
		return fmt.Errorf("%s is on a file system that is mounted noexec: set TMPDIR to a directory on another one, or %s to a directory that contains the libraries",
			dir, LibraryEnv)
	}
	return nil
}

// fingerprint is a name that is different for other files.
func fingerprint(files fs.FS) (string, error) {
	h := sha256.New()
	err := forEachFile(files, func(name string, text []byte) error {
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		_, err := h.Write(text)
		return err
	})
	return fmt.Sprintf("lib-%x", h.Sum(nil)[:8]), err
}

// each calls f with each library.
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

// intact reports whether a folder has the libraries, byte for byte: they may have been cut
// short by a full disk.
func intact(files fs.FS, dir string) bool {
	return forEachFile(files, func(name string, want []byte) error {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && !bytes.Equal(got, want) {
			err = fs.ErrInvalid
		}
		return err
	}) == nil
}

// install makes the folder dir with the libraries, whole or not at all: another program may do
// the same at this moment.
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
	// What is there is broken. Programs that run have the files open.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// write writes the libraries, with the names besides that programs give to dlopen:
// libibverbs.so is libibverbs.so.1.
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
