package run

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Reasons why a program cannot run, or not on softroce. Match them with errors.Is.
var (
	ErrNotFound      = errors.New("command not found")
	ErrNotExecutable = errors.New("cannot execute")

	// ErrUnsuitable means that the program would run without our libraries.
	ErrUnsuitable = errors.New("cannot run on softroce")
)

// A program is the result of looking up a command.
type program struct {
	path string   // the file to execute
	args []string // arguments before those of the command: for a script without "#!", the script

	// sanitizer is the sanitizer library that the program needs, or empty. It must be loaded before
	// all other libraries.
	sanitizer string
}

// find looks a command up in PATH as a shell does and inspects it. The error is ErrNotFound,
// ErrNotExecutable or ErrUnsuitable.
func find(command, path string) (program, error) {
	file, err := lookUp(command, path)
	if err != nil {
		return program{}, err
	}
	p := program{path: file}
	return p, p.inspect(file, path, maxInterpreters)
}

// maxInterpreters is the limit of Linux for nested script interpreters.
const maxInterpreters = 5

// lookUp returns the file that a command refers to.
func lookUp(command, path string) (string, error) {
	if strings.Contains(command, "/") {
		return command, executable(command)
	}
	found := fmt.Errorf("%s: %w", command, ErrNotFound)
	if command == "" {
		return "", found
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := dir + "/" + command
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, ErrNotExecutable) && isFile(file) && errors.Is(found, ErrNotFound) {
			found = err
		}
	}
	return "", found
}

// isFile reports whether name is a file. It is false in a directory that the user may not search: a
// shell skips such a directory and reports that the command was not found.
func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && !st.IsDir()
}

// executable returns an error if the kernel would refuse to execute a file.
func executable(file string) error {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s: %w", file, ErrNotFound)
	case err != nil:
		return fmt.Errorf("%w %s: %w", ErrNotExecutable, file, errno(err))
	case st.IsDir():
		return fmt.Errorf("%w %s: %w", ErrNotExecutable, file, unix.EISDIR)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%w %s: %w", ErrNotExecutable, file, err)
	}
	return nil
}

func errno(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// headSize is how many bytes Linux reads to determine the format of an executable.
const headSize = 256

// inspect checks a file that is to be executed: a program, or a script and its interpreter.
func (p *program) inspect(file, path string, depth int) error {
	f, err := os.Open(file)
	if err != nil {
		return nil // executable but not readable: nothing to inspect
	}
	defer f.Close()
	head := make([]byte, headSize)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return p.inspectELF(f, file)
	case bytes.HasPrefix(head, []byte("#!")):
		return p.inspectScript(head[2:], file, path, depth)
	case depth == maxInterpreters && !bytes.ContainsRune(head, 0):
		// POSIX requires execvp to run a text file without "#!" with the shell.
		p.path, p.args = shell, []string{file}
		return p.inspect(shell, path, depth-1)
	}
	return fmt.Errorf("%w %s: %w", ErrNotExecutable, file, unix.ENOEXEC)
}

const shell = "/bin/sh"

// inspectScript checks the interpreter in the first line of a script.
func (p *program) inspectScript(line []byte, file, path string, depth int) error {
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 || depth == 0 {
		return fmt.Errorf("%w %s: %w", ErrNotExecutable, file, unix.ENOEXEC)
	}
	if err := executable(words[0]); err != nil {
		return fmt.Errorf("%w %s: its interpreter: %w", ErrNotExecutable, file, err)
	}
	if err := p.inspect(words[0], path, depth-1); err != nil {
		return err
	}
	if filepath.Base(words[0]) != "env" {
		return nil
	}
	for _, w := range words[1:] {
		if strings.HasPrefix(w, "-") || strings.Contains(w, "=") {
			continue
		}
		real, err := lookUp(w, path)
		if err != nil {
			return nil // env reports it
		}
		return p.inspect(real, path, depth-1)
	}
	return nil
}

// machines maps the architectures that this program may be built for to ELF.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "riscv64": elf.EM_RISCV, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390,
}

func unsuitable(file, why string, a ...any) error {
	return fmt.Errorf("%s %w: %s", file, ErrUnsuitable, fmt.Sprintf(why, a...))
}

// inspectELF rejects programs that would not load our libraries.
func (p *program) inspectELF(f *os.File, file string) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return nil // the kernel accepts files that debug/elf does not
	}
	if e.Class == elf.ELFCLASS32 {
		return unsuitable(file, "it is a 32-bit program and the libraries are 64-bit")
	}
	if m, ok := machines[runtime.GOARCH]; ok && e.Machine != m {
		return unsuitable(file, "it is built for %v and the libraries for %s", e.Machine, runtime.GOARCH)
	}
	linker := interpreter(e)
	switch {
	case linker == "" && hasVerbs(f):
		return nil // it uses the daemon without our libraries
	case linker == "":
		return unsuitable(file, "it is statically linked, so no dynamic linker loads the libraries; "+
			"link it dynamically against libibverbs.so.1 (Go programs: use package verbs instead)")
	case strings.HasPrefix(filepath.Base(linker), "ld-musl"):
		return unsuitable(file, "it is linked against musl and the libraries against glibc")
	}
	if why := secureExecReason(f); why != "" {
		return unsuitable(file, "%s, so the dynamic linker ignores LD_PRELOAD and LD_LIBRARY_PATH; run a copy without that bit or capability, or run it as the user that it switches to", why)
	}
	if needs, err := e.ImportedLibraries(); err == nil {
		for _, n := range needs {
			if strings.HasPrefix(n, "libasan.so") || strings.HasPrefix(n, "libtsan.so") {
				p.sanitizer = n
			}
		}
	}
	return nil
}

// hasVerbs reports whether a program was built with this module and may therefore use package
// verbs.
func hasVerbs(f *os.File) bool {
	info, err := buildinfo.Read(f)
	return err == nil && (info.Main.Path == module ||
		slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module }))
}

// module is the path of this module.
const module = "softroce"

// interpreter returns the dynamic linker of a program, or an empty string.
func interpreter(e *elf.File) string {
	for _, s := range e.Progs {
		if s.Type == elf.PT_INTERP && s.Filesz < unix.PathMax {
			name := make([]byte, s.Filesz)
			if _, err := s.ReadAt(name, 0); err == nil {
				return string(bytes.TrimRight(name, "\x00"))
			}
		}
	}
	return ""
}

// stNoSUID is ST_NOSUID of statfs(2): the file system is mounted nosuid.
const stNoSUID = 2

// secureExecReason returns why the kernel would start a program in secure-execution mode
// (AT_SECURE), or an empty string if it would not.
func secureExecReason(f *os.File) string {
	var st unix.Stat_t
	var fs unix.Statfs_t
	fd := int(f.Fd())
	if unix.Fstat(fd, &st) != nil || unix.Fstatfs(fd, &fs) != nil || fs.Flags&stNoSUID != 0 {
		return ""
	}
	if no, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && no == 1 {
		return "" // the bits have no effect
	}
	const setgid = unix.S_ISGID | unix.S_IXGRP // set-group-ID without group execute once meant mandatory locking
	switch {
	case st.Mode&unix.S_ISUID != 0 && int(st.Uid) != os.Getuid():
		return "it is set-user-ID"
	case st.Mode&setgid == setgid && int(st.Gid) != os.Getgid():
		return "it is set-group-ID"
	case os.Getuid() != 0 && hasCapabilities(fd):
		return "it has file capabilities"
	}
	return ""
}

func hasCapabilities(fd int) bool {
	n, err := unix.Fgetxattr(fd, "security.capability", nil)
	return err == nil && n > 0
}
