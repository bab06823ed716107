package tempdir

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Permission bits for Trusted.
const (
	OthersWrite         fs.FileMode = 0o002
	GroupAndOthersWrite fs.FileMode = 0o022
)

// Trusted reports whether no other user can put a file at path or replace one: path and the
// directories above it, as far as they exist, belong to root, to this user or to one of owners, and
// none has the write bits, unless it is sticky.
func Trusted(path string, write fs.FileMode, owners ...int) bool {
	owners = append(owners, 0, os.Geteuid())
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	return trusted(path, write, owners) && trusted(real, write, owners)
}

func trusted(path string, write fs.FileMode, owners []int) bool {
	for ; ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err == nil {
			link := info.Mode()&fs.ModeSymlink != 0
			sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
			if !slices.Contains(owners, OwnerOf(info)) || !link && !sticky && info.Mode().Perm()&write != 0 {
				return false
			}
		}
		if path == filepath.Dir(path) {
			return filepath.IsAbs(path)
		}
	}
}

// OwnerOf returns the user ID of a file's owner.
func OwnerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
