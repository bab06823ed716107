package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is a pseudoterminal that runs an interactive shell.
type terminal struct {
	t      *testing.T
	keys   *os.File
	output chan string // output as it is read
	text   string      // output that waitFor has not consumed yet
}

// openTerminal starts an interactive shell whose prompt is the status of the last command, as in
// <0>.
func openTerminal(t *testing.T, env ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	number, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	shell := exec.Command("bash", "--norc", "--noprofile", "--noediting", "-i")
	shell.Env = append(append(os.Environ(), "PS1=<$?>"), env...)
	shell.Stdin, shell.Stdout, shell.Stderr = tty, tty, tty
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, keys: keys, output: make(chan string, 1024)}
	t.Cleanup(func() {
		shell.Process.Signal(syscall.SIGHUP) // a shell passes it on to its jobs
		kill := time.AfterFunc(awaitTime, func() { shell.Process.Kill() })
		shell.Wait()
		kill.Stop()
	})
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := keys.Read(buf)
			if err != nil {
				return
			}
			x.output <- string(buf[:n])
		}
	}()
	x.waitFor("<0>")
	return x
}

func (x *terminal) write(keys string) { x.keys.WriteString(keys) }

// waitFor waits until text appears.
func (x *terminal) waitFor(text string) {
	x.t.Helper()
	limit := time.After(awaitTime)
	for {
		if _, rest, ok := strings.Cut(x.text, text); ok {
			x.text = rest
			return
		}
		select {
		case more := <-x.output:
			x.text += more
		case <-limit:
			x.t.Fatalf("the terminal shows %q, want %q", x.text, text)
		}
	}
}

// someLibrary returns a directory with a library that softroce run can preload.
func someLibrary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("gcc", "-shared", "-o", filepath.Join(dir, "libibverbs.so.1"), "-x", "c", "/dev/null").CombinedOutput()
	if err != nil && os.Getenv("CI") == "" {
		t.Skipf("needs gcc to build a library: %v, %s", err, out)
	} else if err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	return dir
}

// TestShellSeesStoppedProgram stops programs that softroce run started: with ^Z, by a signal to
// themselves, and, like a shell does, from a process group of their own in the foreground. Each
// time the outer shell must regain the terminal, and fg must continue the program.
func TestShellSeesStoppedProgram(t *testing.T) {
	dir, err := os.MkdirTemp("", "softroce") // leaves room for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := openTerminal(t, "SOFTROCE_SOCKET="+filepath.Join(dir, "s"), "SOFTROCE_LIBDIR="+someLibrary(t))

	// The program does not read input: it would consume what is typed between its stop and that of
	// softroce.
	x.write("softroce run -q -- sh -c 'trap \"echo goes on $((6*7)); exit 3\" CONT; echo runs $((6*7)); while :; do sleep 0.05; done'\n")
	x.waitFor("runs 42")
	x.write("\x1a") // ^Z
	x.waitFor("Stopped")
	x.waitFor("<148>")
	x.write("fg\n")
	x.waitFor("goes on 42")
	x.waitFor("<3>")

	x.write("softroce run -q -- sh -c 'kill -STOP $$; echo back $((6*7)); exit 5'\n")
	x.waitFor("Stopped")
	x.write("fg\n")
	x.waitFor("back 42")
	x.waitFor("<5>")

	x.write("softroce run -q -- bash --norc --noprofile --noediting -i\n")
	x.waitFor("<0>")
	x.write("suspend\n")
	x.waitFor("Stopped")
	x.waitFor("<147>")
	x.write("fg\n")
	x.write("echo inner $((6*7))\n")
	x.waitFor("inner 42")
	x.write("exit 7\n")
	x.waitFor("<7>")
}

// A command that takes long shows its progress on a terminal. Ctrl-C ends it, and it reports what
// it has.
func TestTerminalShowsProgressAndInterruptReports(t *testing.T) {
	dir, err := os.MkdirTemp("", "softroce") // leaves room for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fixture, err := os.ReadFile("../../pcap-fixtures/pp-rc-mtu1024.pcap")
	if err != nil {
		t.Fatal(err)
	}
	x := openTerminal(t, "SOFTROCE_SOCKET="+filepath.Join(dir, "s"))

	x.write("mkfifo $SOFTROCE_SOCKET.ready; softroce daemon > $SOFTROCE_SOCKET.ready &\n")
	x.write("grep -q ^socket $SOFTROCE_SOCKET.ready && echo ready $((6*7))\n")
	x.waitFor("ready 42")
	x.write("softroce perf write --latency 0 --duration 10m\n")
	x.waitFor("bandwidth: ")
	x.waitFor(" of 10m0s, ")
	x.write("\x03") // ^C
	x.waitFor(" s of the bandwidth")
	x.waitFor("softroce: interrupted")
	x.waitFor("<1>")

	// What was read of a pipe until then is judged; replay needs all of it. Ctrl-C does not reach
	// the pipe's writer.
	for name, report := range map[string]string{"check": "judged 1 connection", "replay": "standard input: 0.0 MiB, no flow was compared"} {
		x.write("mkfifo $SOFTROCE_SOCKET." + name + "; softroce " + name + " - < $SOFTROCE_SOCKET." + name + "\n")
		pipe := openFIFO(t, filepath.Join(dir, "s."+name))
		if _, err := pipe.Write(fixture); err != nil {
			t.Fatal(err)
		}
		x.waitFor("standard input: 0.0 MiB")
		x.write("\x03")
		x.waitFor(report)
		x.waitFor("softroce: interrupted")
		x.waitFor("<1>")
	}
	// The end of the shell does not end the daemon if SIGHUP is ignored, as under nohup.
	x.write("kill %1; wait %1; echo ended $((6*7))\n")
	x.waitFor("ended 42")
}

// openFIFO opens a FIFO for writing once it is there and has a reader.
func openFIFO(t *testing.T, path string) *os.File {
	t.Helper()
	for end := time.Now().Add(awaitTime); ; time.Sleep(10 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { f.Close() })
			return f
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// top redraws the terminal, leaves it as it was at q, and says so if the daemon ends.
func TestTopOnTerminal(t *testing.T) {
	dir, err := os.MkdirTemp("", "softroce") // leaves room for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	x := openTerminal(t, "SOFTROCE_SOCKET="+filepath.Join(dir, "s"))
	x.write("mkfifo $SOFTROCE_SOCKET.ready; softroce daemon > $SOFTROCE_SOCKET.ready 2> /dev/null &\n")
	x.write("grep -q ^socket $SOFTROCE_SOCKET.ready && echo ready $((6*7))\n")
	x.waitFor("ready 42")
	x.write("softroce top --interval 100ms\n")
	for range 2 {
		x.waitFor(homeScreen + "softroce ")
		x.waitFor("softroce0")
		x.waitFor("QP ")
		x.waitFor("CLIENT ")
	}
	x.write("q")
	x.waitFor(leaveScreen)
	x.waitFor("<0>")
	x.write("stty -a | grep -o ' icanon .*' | cut -c 2-7; echo state $((6*7))\n")
	x.waitFor("icanon")
	x.waitFor("state 42")
	x.waitFor("<0>")
	x.write("softroce top --interval 100ms\n")
	x.waitFor("softroce0")
	x.write("\x03") // ^C
	x.waitFor(leaveScreen)
	x.waitFor("<0>")
	x.write("softroce top --interval 100ms & sleep 0.5; kill %1; fg\n")
	x.waitFor(leaveScreen)
	x.waitFor("softroce: the daemon on " + filepath.Join(dir, "s") + " has ended")
	x.waitFor("<1>")
}

// TestTopUnderTmux sees what top leaves on the screen of a terminal, also of one that becomes
// smaller.
func TestTopUnderTmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	dir, err := os.MkdirTemp("", "softroce") // leaves room for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tmux := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("tmux", append([]string{"-S", filepath.Join(dir, "tmux"), "-f", "/dev/null"}, args...)...)
		cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+filepath.Join(dir, "s"), "PS1=<$?>", "TERM=xterm", "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	tmux("new-session", "-d", "-x", "100", "-y", "30", "bash", "--norc", "--noprofile")
	t.Cleanup(func() { tmux("kill-server") })
	await := func(what string, is func(screen string) bool) string {
		t.Helper()
		for limit := time.Now().Add(awaitTime); ; time.Sleep(20 * time.Millisecond) {
			screen := tmux("capture-pane", "-p")
			if is(screen) {
				return screen
			}
			if time.Now().After(limit) {
				t.Fatalf("no %s on the screen:\n%s", what, screen)
			}
		}
	}
	shows := func(text string) string {
		t.Helper()
		return await(text, func(screen string) bool { return strings.Contains(screen, text) })
	}
	tmux("send-keys", "softroce daemon 2> /dev/null &", "Enter")
	shows("socket " + filepath.Join(dir, "s"))
	tmux("send-keys", "clear; until softroce fault add drop kind write every 9; do :; done; echo before $((6*7))", "Enter")
	shows("before 42")
	tmux("send-keys", "softroce top --interval 100ms", "Enter")
	screen := shows("drop kind write every 9")
	for i, want := range []string{"softroce ", "", "NIC ", "softroce0 ", "softroce1 ", "", "QP ", "", "NIC        ID  RULE", "softroce0  1 "} {
		if line := strings.Split(screen, "\n")[i]; !strings.HasPrefix(line, want) {
			t.Errorf("line %d is %q, want %q", i+1, line, want)
		}
	}
	if strings.Contains(screen, "before 42") {
		t.Errorf("top has not cleared the screen:\n%s", screen)
	}
	tmux("resize-window", "-x", "40", "-y", "8")
	await("smaller picture", func(screen string) bool {
		lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
		return len(lines) == 8 && strings.HasPrefix(lines[0], "softroce ") && strings.HasSuffix(lines[0], "…") && strings.HasPrefix(lines[2], "NIC ")
	})
	tmux("resize-window", "-x", "100", "-y", "30")
	tmux("send-keys", "q")
	screen = shows("before 42")
	if strings.Contains(screen, "NIC ") {
		t.Errorf("top has left its picture:\n%s", screen)
	}
	tmux("send-keys", "kill %1; wait; echo ended $((6*7))", "Enter")
	shows("ended 42")
}
