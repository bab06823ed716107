package tempdir

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestTrustedDirectoriesAreOutOfReachOfOtherUsers(t *testing.T) {
	const stranger = 12345
	for name, c := range map[string]struct {
		mode    fs.FileMode
		owner   int
		write   fs.FileMode
		owners  []int
		trusted bool
	}{
		"own":                        {0o755, -1, GroupAndOthersWrite, nil, true},
		"group may write":            {0o775, -1, GroupAndOthersWrite, nil, false},
		"group may write, accepted":  {0o775, -1, OthersWrite, nil, true},
		"others may write":           {0o777, -1, OthersWrite, nil, false},
		"sticky":                     {0o777 | fs.ModeSticky, -1, GroupAndOthersWrite, nil, true},
		"another user's":             {0o755, stranger, OthersWrite, nil, false},
		"another user's, sticky":     {0o755 | fs.ModeSticky, stranger, OthersWrite, nil, false},
		"of a user that is accepted": {0o755, stranger, OthersWrite, []int{stranger}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.owner >= 0 && os.Getuid() != 0 {
				t.Skip("left out: only root can create directories of another user")
			}
			top := t.TempDir()
			dir := filepath.Join(top, "dir")
			inner := filepath.Join(dir, "inner")
			link := filepath.Join(top, "link")
			for _, err := range []error{os.MkdirAll(inner, 0o700), os.Symlink(inner, link), os.Chmod(dir, c.mode), os.Chown(dir, c.owner, -1)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range []string{dir, inner, link, filepath.Join(inner, "none/yet")} {
				if Trusted(path, c.write, c.owners...) != c.trusted {
					t.Errorf("%s is trusted: %v, want %v", path, !c.trusted, c.trusted)
				}
			}
		})
	}
}

func TestLinkOfAnotherUserIsNotTrusted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can create links of another user")
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(link, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if Trusted(filepath.Join(link, "file"), OthersWrite) {
		t.Error("a file behind the link is trusted")
	}
}
