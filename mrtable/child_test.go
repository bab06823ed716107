package mrtable

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The client in these tests is this test binary, started with childVar set. It executes the
// commands on its standard input, one a line, and replies to each with a line.
const childVar = "MRTABLE_TEST_CHILD"

// emulatorVar has the command line of the emulator in which this program runs, if it does: the
// kernel cannot execute it.
const emulatorVar = "MRTABLE_TEST_EMULATOR"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		serveChild()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// programFD is the descriptor by which a client in an emulator has its program.
const programFD = 4

// ownProgram returns the command by which a client executes this program. The links in /proc also
// work for a user without access to the binary's directory. In an emulator, the first one refers to
// the emulator.
func ownProgram() []string {
	if emulator := strings.Fields(os.Getenv(emulatorVar)); len(emulator) > 0 {
		return append(emulator, fmt.Sprint("/proc/self/fd/", programFD))
	}
	return []string{"/proc/self/exe"}
}

// A child is a client process.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	sock int
}

// startChild starts a client, as another user if uid is not 0.
func startChild(t *testing.T, uid uint32) *child {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	argv := ownProgram()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), childVar+"=1")
	cmd.ExtraFiles = []*os.File{theirs, program} // the last is programFD
	cmd.Stderr = os.Stderr
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t, cmd, in, bufio.NewReader(out), pair[0]}
	t.Cleanup(func() {
		c.kill()
		unix.Close(pair[0])
	})
	return c
}

// kill terminates the client and waits for its exit.
func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// command makes the client execute a command and returns its reply.
func (c *child) command(format string, args ...any) string {
	c.t.Helper()
	fmt.Fprintf(c.in, format+"\n", args...)
	return c.reply()
}

func (c *child) reply() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ok ") {
		c.t.Fatalf("client: %q, %v", line, err)
	}
	return strings.TrimSpace(line[3:])
}

// alloc maps n bytes in the client, each with the value fill.
func (c *child) alloc(n int, fill byte) (addr uint64) {
	c.t.Helper()
	fmt.Sscan(c.command("map %d %d", n, fill), &addr)
	return addr
}

// peek returns n bytes of the client's memory, as the client reads them.
func (c *child) peek(addr uint64, n int) []byte {
	c.t.Helper()
	b, _ := hex.DecodeString(c.command("peek %d %d", addr, n))
	return b
}

func (c *child) open() *Process {
	c.t.Helper()
	if !hasProcessVM() {
		return c.openMem()
	}
	p, err := OpenProcess(c.cmd.Process.Pid, -1)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

// receiveMem receives the descriptor of /proc/self/mem that the client passes.
func (c *child) receiveMem() int {
	c.t.Helper()
	c.command("sendmem")
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(c.sock, make([]byte, 1), oob, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) == 0 {
		c.t.Fatal("no descriptor received", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { unix.Close(fds[0]) })
	return fds[0]
}

func (c *child) openMem() *Process {
	c.t.Helper()
	p, err := OpenProcessMem(c.receiveMem())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.Close() })
	return p
}

func (c *child) memory(p *Process, addr uint64, n int) Memory {
	c.t.Helper()
	m, err := p.Memory(addr, uint64(n), allRights)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// serveChild is the client's main function.
func serveChild() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		arg := make([]int, 4)
		for i, s := range f[1:] {
			fmt.Sscan(s, &arg[i])
		}
		answer, err := childDo(f[0], arg)
		if err != nil {
			fmt.Println("err", err)
			continue
		}
		fmt.Println("ok", answer)
	}
}

func childDo(what string, arg []int) (string, error) {
	switch what {
	case "map":
		b, err := unix.Mmap(-1, 0, arg[0], unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		for i := range b {
			b[i] = byte(arg[1])
		}
		return fmt.Sprint(address(b)), err
	case "unmap":
		_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(arg[0]), uintptr(arg[1]), 0)
		return "", errnoOrNil(errno)
	case "protect":
		_, _, errno := unix.Syscall(unix.SYS_MPROTECT, uintptr(arg[0]), uintptr(arg[1]), uintptr(arg[2]))
		return "", errnoOrNil(errno)
	case "peek":
		return hex.EncodeToString(childBytes(arg[0], arg[1])), nil
	case "poll":
		return childPoll(arg[0], arg[1], arg[2])
	case "sendmem":
		f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return "", unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
	case "exec":
		fmt.Println("ok now")
		argv := ownProgram()
		path, err := exec.LookPath(argv[0])
		if err != nil {
			return "", err
		}
		return "", unix.Exec(path, append(argv, os.Args[1:]...), os.Environ())
	case "undumpable":
		return "", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case "open":
		p, err := OpenProcess(arg[0], -1)
		if err != nil {
			return err.Error(), nil
		}
		return "opened", p.Close()
	}
	return "", fmt.Errorf("what is %q", what)
}

func errnoOrNil(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// childBytes returns memory of the client outside the Go heap.
func childBytes(addr, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// pollLimit limits the wait for a message that never arrives; it is not a speed requirement.
const pollLimit = time.Minute

// childPoll receives messages of n bytes, in which every byte of message i is i, by polling the
// final 8 bytes as programs do. It reports how many messages had stale bytes. The word after the
// message holds the client's progress.
func childPoll(addr, n, rounds int) (string, error) {
	runtime.LockOSThread()
	b := childBytes(addr, n+8)
	stale := 0
	for i := 1; i <= rounds; i++ {
		deadline := time.Now().Add(pollLimit)
		want := bytes.Repeat([]byte{byte(i)}, n)
		end := binary.NativeEndian.Uint64(want[n-8:])
		for spins := 0; loadUint64(&b[n-8]) != end; spins++ {
			if spins%10000 != 9999 {
				continue
			}
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // the writer may need this CPU
			if time.Now().After(deadline) {
				return "", fmt.Errorf("message %d did not arrive", i)
			}
		}
		if !bytes.Equal(b[:n], want) {
			stale++
		}
		binary.NativeEndian.PutUint64(b[n:], uint64(i))
	}
	return fmt.Sprint(stale), nil
}
