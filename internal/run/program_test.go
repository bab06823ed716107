package run

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary act as a daemon, and as a softroce of another user: see asNobody.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "daemon" { // a daemon that never becomes ready
		time.Sleep(time.Hour)
	}
	if len(os.Args) == 4 && os.Args[1] == findArg {
		if _, err := find(os.Args[2], os.Args[3]); err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(shellStatus(err))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const findArg = "find-program"

// asNobody looks up a command in path in a process of another user, which runs a copy of the test
// binary in dir. All users must have access to dir.
func asNobody(t *testing.T, dir, command, path string) (message string, status int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to run as another user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Other users have no access to the test's own directory.
	copied := filepath.Join(dir, "finder")
	copyFile(t, self, copied)
	cmd := exec.Command(copied, findArg, command, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// publicDir returns a directory that all users can access.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "softroce-find-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// program64 returns a minimal 64-bit ELF program, with a dynamic linker unless linker is empty.
func program64(machine elf.Machine, linker string) []byte {
	const headerSize, progSize = 64, 56
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: headerSize, Phentsize: progSize,
	}
	var b bytes.Buffer
	if linker == "" {
		binary.Write(&b, binary.LittleEndian, h)
		return b.Bytes()
	}
	h.Phoff, h.Phnum = headerSize, 1
	binary.Write(&b, binary.LittleEndian, h)
	binary.Write(&b, binary.LittleEndian, elf.Prog64{
		Type: uint32(elf.PT_INTERP), Off: headerSize + progSize, Filesz: uint64(len(linker) + 1),
	})
	b.WriteString(linker + "\x00")
	return b.Bytes()
}

func program32() []byte {
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, elf.Header32{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: 1, Ehsize: 52,
	})
	return b.Bytes()
}

func TestFindRejectsProgramsThatCannotPreload(t *testing.T) {
	dir := t.TempDir()
	ours := machines[runtime.GOARCH]
	other := elf.EM_S390
	if ours == other {
		other = elf.EM_X86_64
	}
	const glibc = "/lib64/ld-linux-x86-64.so.2"
	cases := map[string]struct {
		file     []byte
		err      error
		wantText string
	}{
		"dynamic":       {program64(ours, glibc), nil, ""},
		"static":        {program64(ours, ""), ErrUnsuitable, "statically linked"},
		"musl":          {program64(ours, "/lib/ld-musl-x86_64.so.1"), ErrUnsuitable, "musl"},
		"foreign":       {program64(other, glibc), ErrUnsuitable, "it is built for"},
		"32bit":         {program32(), ErrUnsuitable, "32-bit"},
		"cut":           {program64(ours, glibc)[:20], nil, ""}, // left to the kernel to reject
		"script":        {[]byte("#!/bin/sh\n"), nil, ""},
		"envscript":     {[]byte("#!/usr/bin/env -S sh -e\n"), nil, ""},
		"text":          {[]byte("echo hello\n"), nil, ""},
		"empty":         {nil, nil, ""},
		"binary":        {[]byte("\x00\x01\x02"), ErrNotExecutable, "exec format error"},
		"nointerpreter": {[]byte("#!\n"), ErrNotExecutable, "exec format error"},
		"gone":          {[]byte("#!/no/such/shell\n"), ErrNotExecutable, "its interpreter: /no/such/shell"},
		"ofstatic":      {[]byte("#!" + filepath.Join(dir, "static") + " -x\n"), ErrUnsuitable, "static cannot run"},
		"envofstatic":   {[]byte("#!/usr/bin/env static\n"), ErrUnsuitable, "statically"},
		"ofitself":      {[]byte("#!" + filepath.Join(dir, "ofitself") + "\n"), ErrNotExecutable, "exec format error"},
	}
	for name, c := range cases {
		if err := os.WriteFile(filepath.Join(dir, name), c.file, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range cases {
		_, err := find(name, dir)
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.wantText) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.err, c.wantText)
		}
	}
}

// A Go program with package verbs talks to the daemon itself, and is statically linked if built
// without cgo.
func TestFindAcceptsStaticProgramsWithPackageVerbs(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]string{"verbs": "softroce/examples/rcops", "other": "./testdata/other.go"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), source)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if _, err := find("verbs", dir); err != nil {
		t.Errorf("with package verbs: %v", err)
	}
	if _, err := find("other", dir); !errors.Is(err, ErrUnsuitable) {
		t.Errorf("without package verbs: %v", err)
	}
}

func TestFindLooksUpCommandsLikeAShell(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for file, mode := range map[string]os.FileMode{a + "/tool": 0o644, b + "/tool": 0o755, a + "/plain": 0o644} {
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(a+"/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(b)
	path := a + ":" + b
	for _, c := range []struct {
		command, path, file string
		status              int
	}{
		{"tool", path, b + "/tool", 0},
		{"tool", a + "::", "./tool", 0},
		{"./tool", "", "./tool", 0},
		{"plain", path, "", StatusNotExecutable},
		{"folder", path, "", StatusNotFound},
		{a + "/folder", path, "", StatusNotExecutable},
		{"none", path, "", StatusNotFound},
		{"", path, "", StatusNotFound},
		{"./none", path, "", StatusNotFound},
		{"./tool/x", path, "", StatusNotFound},
	} {
		p, err := find(c.command, c.path)
		if err != nil && shellStatus(err) != c.status || err == nil && (c.status != 0 || p.path != c.file) {
			t.Errorf("%q in %q: %q, %v; want %q, status %d", c.command, c.path, p.path, err, c.file, c.status)
		}
	}
}

// Shells skip a directory in PATH that may not be searched, and report a command given by a path in
// such a directory as not executable.
func TestFindSkipsUnsearchablePATHDirs(t *testing.T) {
	dir := publicDir(t)
	locked, open := filepath.Join(dir, "locked"), filepath.Join(dir, "open")
	for folder, mode := range map[string]os.FileMode{locked: 0o700, open: 0o755} {
		if err := os.Mkdir(folder, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "tool"), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(open, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command, path string
		status        int
	}{
		{"tool", locked + ":" + open, 0},
		{"tool", locked, StatusNotFound},
		{"none", locked + ":" + open, StatusNotFound},
		{"plain", locked + ":" + open, StatusNotExecutable},
		{locked + "/tool", "", StatusNotExecutable},
	} {
		if message, code := asNobody(t, dir, c.command, c.path); code != c.status {
			t.Errorf("%q in %q: status %d, %s; want %d", c.command, c.path, code, message, c.status)
		}
	}
}

func TestFindRejectsPrivilegedPrograms(t *testing.T) {
	dir := publicDir(t)
	program := program64(machines[runtime.GOARCH], "/lib64/ld-linux-x86-64.so.2")
	place := func(name string, mode uint32) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, program, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	plain, suid, sgid, locking := place("plain", 0o755), place("suid", 0o4755), place("sgid", 0o2755), place("locking", 0o2745)
	capable := place("capable", 0o755)
	// struct vfs_cap_data, revision 2: CAP_NET_RAW, permitted and effective.
	caps := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if os.Getuid() == 0 {
		if err := unix.Setxattr(capable, "security.capability", caps, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{plain, suid, sgid, locking, capable} {
		if _, err := find(file, ""); err != nil {
			t.Errorf("for its own user: %v", err)
		}
	}
	for file, wantText := range map[string]string{
		plain: "", locking: "", suid: "set-user-ID", sgid: "set-group-ID", capable: "file capabilities",
	} {
		message, code := asNobody(t, dir, file, "")
		want := StatusNotExecutable
		if wantText == "" {
			want = 0
		}
		if code != want || !strings.Contains(message, wantText) {
			t.Errorf("%s for another user: status %d, %q", file, code, message)
		}
	}
}
