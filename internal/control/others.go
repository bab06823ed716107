package control

import (
	"os"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Others returns the sockets, except used, of daemons that this user may attach to, as far as they
// are recognized: the kernel lists a listening seqpacket socket in this network namespace whose
// path contains "softroce". It does not connect to them, because a daemon may end when its last
// client leaves.
func Others(used string) []string {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	paths := listening(string(text))
	paths = slices.DeleteFunc(paths, func(p string) bool {
		return p == used || unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, unix.AT_EACCESS) != nil
	})
	slices.Sort(paths)
	return slices.Compact(paths)
}

// listening returns the paths of daemons' sockets in a table in the format of /proc/net/unix.
func listening(table string) (paths []string) {
	const (
		acceptsConnections = "00010000" // __SO_ACCEPTCON
		seqpacket          = "0005"
	)
	for line := range strings.Lines(table) {
		path := strings.TrimSuffix(line, "\n")
		var f [7]string // Num RefCount Protocol Flags Type St Inode, and then the path
		for i := range f {
			f[i], path, _ = strings.Cut(strings.TrimLeft(path, " "), " ")
		}
		if f[3] != acceptsConnections || f[4] != seqpacket {
			continue
		}
		printable := strings.IndexFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
		if strings.HasPrefix(path, "/") && strings.Contains(path, "softroce") && printable {
			paths = append(paths, path)
		}
	}
	return paths
}
