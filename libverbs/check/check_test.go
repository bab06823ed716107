// Package check tests libverbs with C programs, which use the libraries as programs linked against
// the distribution's do: correctly, incorrectly, from several threads, and after the daemon ended.
package check

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/verbs/verbstest"
)

// A build is the libraries, built once, and the programs that use them.
type build struct {
	folder  string
	cc      string
	flags   []string // of the compiler and the linker
	runner  []string // runs a program
	objects func() (string, error)
}

// Most programs run with the sanitizers that make invalid accesses and leaks errors.
var (
	sanitized = newBuild("", "gcc", "-O0", "-fsanitize=address,undefined", "-fno-omit-frame-pointer")
	plain     = newBuild("plain", "gcc", "-O2")
)

func newBuild(folder, cc string, flags ...string) *build {
	b := &build{folder: folder, cc: cc, flags: flags}
	b.objects = sync.OnceValues(b.make)
	return b
}

// in makes a command run the programs.
func (b *build) in(runner ...string) *build {
	b.runner = runner
	return b
}

var workDir string

func TestMain(m *testing.M) {
	if path := os.Getenv(serveVariable); path != "" {
		serve(path)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if workDir, err = os.MkdirTemp("", "softroce-check-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(workDir)
	return m.Run()
}

func (b *build) make() (string, error) {
	dir := filepath.Join(workDir, b.folder)
	out, err := exec.Command("make", "-s", "-j2", "-C", "..", "OUT="+dir, "CC="+b.cc, "CFLAGS=-g "+strings.Join(b.flags, " "),
		"SANITIZE="+strings.Join(b.flags, " "), "all").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libs: %w: %s", err, out)
	}
	return dir, nil
}

// library returns the directory of the libraries. Without a compiler it skips the test.
func (b *build) library(t *testing.T) string {
	t.Helper()
	for _, tool := range append([]string{"make", "cc", b.cc}, b.runner[:min(1, len(b.runner))]...) {
		if _, err := exec.LookPath(tool); err != nil && os.Getenv("CI") == "" {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	dir, err := b.objects()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// compile builds a program of testdata and returns its path.
func (b *build) compile(t *testing.T, name string) string {
	t.Helper()
	dir := b.library(t)
	out := filepath.Join(dir, name)
	args := slices.Concat(b.flags, []string{"-g", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", out,
		filepath.Join("testdata", name+".c"), "-L" + dir, "-lrdmacm", "-libverbs"})
	if text, err := exec.Command(b.cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return out
}

func library(t *testing.T) string {
	t.Helper()
	return sanitized.library(t)
}

func compile(t *testing.T, name string) string {
	t.Helper()
	return sanitized.compile(t, name)
}

// programLimit ends programs that hang.
const programLimit = time.Minute

// command returns the command that runs a compiled program with the daemon on a socket.
func command(t *testing.T, socket, file string, args ...string) *exec.Cmd {
	t.Helper()
	return sanitized.command(t, programLimit, socket, file, args...)
}

func (b *build) command(t *testing.T, limit time.Duration, socket, file string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	line := slices.Concat(b.runner, []string{file}, args)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+b.library(t),
		"UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1",
		"ASAN_OPTIONS=handle_abort=1:use_sigaltstack=0", "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:handle_abort=1")
	return cmd
}

// runProgram runs a program of testdata on the NICs of a fabric, nic0 and nic1.
func runProgram(t *testing.T, f *verbstest.Fabric, name string, args ...string) {
	t.Helper()
	if out, err := command(t, f.Socket(), compile(t, name), args...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// TestPrograms runs the programs that need a daemon and nothing else.
func TestPrograms(t *testing.T) {
	for _, c := range []struct{ program, claim string }{
		{"cancel", "cancelled threads hold no lock"},
		{"devmem", "device memory and DMA buffers"},
		{"events", "events wake pollers and delay destruction"},
		{"flush", "FLUSH is posted by a function that later headers declare"},
		{"handles", "a handle that does not exist is ENOENT"},
		{"imported", "imported contexts have rings"},
		{"invalid_args", "invalid arguments return errors"},
		{"overwritten", "an overwritten index is not followed"},
		{"paths", "device paths are redirected"},
		{"rate_limit", "rate limits are set and read"},
		{"posted", "a message that is posted before its queue pair ends arrives"},
		{"processor", "programs share processors with the engine"},
		{"rdmacm", "the connection manager reports outcomes"},
		{"resize_full", "a resize without room for a descriptor uses memory that is mapped"},
		{"shared_rings", "rings share mappings"},
		{"stolen_fds", "closed descriptors are not used"},
		{"threads", "threads and forked children"},
		{"windows", "memory windows and empty regions"},
	} {
		t.Run(c.claim, func(t *testing.T) { runProgram(t, verbstest.New(t), c.program) })
	}
}

// Posts and polls of a process with one thread take no lock, but those of several calls do: a
// thread may start between these.
func TestFirstThreadWaitsForQueueThatIsHeld(t *testing.T) {
	for _, call := range []string{"post", "poll"} {
		t.Run(call, func(t *testing.T) { runProgram(t, verbstest.New(t), "first_thread", call) })
	}
}

func TestGIDsOfBothTypes(t *testing.T) {
	for _, c := range []struct {
		name   string
		ipOnly bool
		errno  syscall.Errno
	}{{"link of RoCE v1", false, 0}, {"link without RoCE v1", true, syscall.EOPNOTSUPP}} {
		t.Run(c.name, func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{RoCEv1GIDs: nic.RoCEv1GIDsBefore}, IPOnly: c.ipOnly})
			out, err := command(t, f.Socket(), compile(t, "gid_types"), strconv.Itoa(int(c.errno))).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestSecondPortHasNoCable(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{Ports: 2, ActiveSpeed: ib.SpeedXDR, ActiveWidth: ib.Width4X}})
	c := command(t, f.Socket(), compile(t, "two_ports"))
	var failures bytes.Buffer
	c.Stderr = &failures
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("read %q (%v)", line, err)
	}
	f.Do(0, func() {
		d := f.Devices[0]
		for _, err := range []error{
			d.SetPort(2, true), d.SetPort(2, true), d.Fire(ib.EventPortErr, 2), d.Fire(ib.EventClientReregister, 2), d.SetPort(2, true),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for _, err := range []error{d.SetPort(3, true), d.SetPort(0, true), d.Fire(ib.EventPortErr, 3)} {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("a port that does not exist: %v", err)
			}
		}
	})
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, failures.String())
	}
}

func TestHiddenFeatures(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{Identity: nic.Identity{Hidden: nic.CapAtomics | nic.CapAtomicWrite | nic.CapFlush | nic.CapLocalInvalidate |
		nic.CapMulticast | nic.CapSRQ | nic.CapTimestamps}})
	if out, err := command(t, f.Socket(), compile(t, "hidden")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// exportedSymbols returns the exported symbols of a library, each with its version.
func exportedSymbols(t *testing.T, file string) map[string]bool {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF {
			names[s.Name+"@"+s.Version] = true
		}
	}
	return names
}

// TestEveryProgramIsRun looks for a test that runs each program of testdata.
func TestEveryProgramIsRun(t *testing.T) {
	var tests []string
	for _, folder := range []string{".", "../../e2e", "../../e2e/harness"} {
		files, err := filepath.Glob(folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		tests = append(tests, files...)
	}
	var text []byte
	for _, f := range tests {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	programs, err := filepath.Glob("testdata/*.c")
	if err != nil || len(programs) < 30 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, p := range programs {
		name := strings.TrimSuffix(filepath.Base(p), ".c")
		if !strings.Contains(string(text), `"`+name+`"`) && !strings.Contains(string(text), "/"+p+`"`) {
			t.Errorf("no test runs %s", p)
		}
	}
}

// TestEveryErrnoIsChecked looks for a call that fails of every function that returns an errno. The
// programs check that the function sets errno to it.
func TestEveryErrnoIsChecked(t *testing.T) {
	header, err := os.ReadFile("/usr/include/infiniband/verbs.h")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("testdata/*.c")
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]bool{}
	for _, p := range programs {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`RETURNS\(E\w+,\s*(\w+)\(`).FindAllSubmatch(text, -1) {
			checked[string(m[1])] = true
		}
	}
	const returnsMinus1, doesNotFail, hasNoObject = "it returns -1", "it does not fail", "no such object can be created"
	other := map[string]string{
		"ibv_get_async_event": returnsMinus1, "ibv_get_cq_event": returnsMinus1, "ibv_get_device_index": returnsMinus1,
		"ibv_get_pkey_index": returnsMinus1, "ibv_init_ah_from_wc": returnsMinus1, "ibv_poll_cq": returnsMinus1,
		"ibv_query_gid": returnsMinus1, "ibv_query_pkey": returnsMinus1, "ibv_rereg_mr": "it returns ibv_rereg_mr_err_code",
		"ibv_close_device": doesNotFail, "ibv_fork_init": doesNotFail, "ibv_query_qp_data_in_order": doesNotFail,
		"ibv_is_qpt_supported": doesNotFail, "ibv_attach_counters_point_flow": hasNoObject, "ibv_read_counters": hasNoObject,
		"ibv_destroy_counters": hasNoObject, "ibv_destroy_flow": hasNoObject, "ibv_destroy_flow_action": hasNoObject,
		"ibv_modify_flow_action_esp": hasNoObject, "ibv_destroy_rwq_ind_table": hasNoObject, "ibv_destroy_wq": hasNoObject,
		"ibv_modify_wq": hasNoObject, "ibv_post_wq_recv": hasNoObject,
	}
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^(?:static inline )?int\s+(ibv_\w+)\(`).FindAllSubmatch(header, -1) {
		name := string(m[1])
		if n++; other[name] == "" && !checked[name] {
			t.Errorf("no program lets %s fail", name)
		}
	}
	if n < 60 {
		t.Errorf("the header has %d functions that return a number", n)
	}
}

// TestExportsDistributionSymbols compares with the libraries that the distribution's programs were
// linked against.
func TestExportsDistributionSymbols(t *testing.T) {
	dir := library(t)
	for lib, least := range map[string]int{"libibverbs.so.1": 76, "librdmacm.so.1": 68} {
		out, err := exec.Command("gcc", "-print-file-name="+lib).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := exportedSymbols(t, strings.TrimSpace(string(out)))
		got := exportedSymbols(t, filepath.Join(dir, lib))
		if len(want) < least {
			t.Errorf("the distribution's %s has %d symbols, want at least %d", lib, len(want), least)
		}
		for s := range want {
			if !got[s] {
				t.Errorf("%s does not export %s", lib, s)
			}
		}
	}
	// Symbols of releases after rdma-core 44. A program that needs one does not start without it.
	got := exportedSymbols(t, filepath.Join(dir, "libibverbs.so.1"))
	for _, s := range []string{
		"ibv_reg_mr_ex@IBVERBS_1.15", "ibv_alloc_dmah@IBVERBS_1.15", "ibv_dealloc_dmah@IBVERBS_1.15", "ibv_dm_export_dmabuf_fd@IBVERBS_1.16",
		"ibv_query_port_speed@IBVERBS_1.16", "verbs_register_driver_57@IBVERBS_PRIVATE_57", "verbs_register_driver_59@IBVERBS_PRIVATE_59",
		"verbs_set_ops@IBVERBS_PRIVATE_64", "ibv_cmd_create_cq_ex2@IBVERBS_PRIVATE_65",
	} {
		if !got[s] {
			t.Errorf("libibverbs.so.1 does not export %s", s)
		}
	}
}

// runWithoutDaemon runs a program of testdata, ends the daemon at the program's request, and later
// starts another one on the same socket.
func runWithoutDaemon(t *testing.T, name string) {
	t.Helper()
	f := verbstest.New(t, verbstest.WithoutLeakCheck())
	socket := f.Socket()
	cmd := command(t, socket, compile(t, name))
	ended := false
	stderr, err := converse(t, cmd, func(line string) {
		switch line {
		case "end":
			ended = true
			f.Close()
		case "start":
			if _, err := fabrictest.New(t, fabrictest.Config{NoLeakCheck: true}).Server.Listen(attach.ListenConfig{Path: socket}); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || !ended {
		t.Errorf("%v, the daemon ended: %v\n%s", err, ended, stderr)
	}
}

// converse runs a program that prints lines, and waits for a line after each. It returns what the
// program printed on standard error.
func converse(t *testing.T, cmd *exec.Cmd, handle func(line string)) (stderr string, err error) {
	t.Helper()
	var diag strings.Builder
	cmd.Stderr = &diag
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); fmt.Fprintln(in) {
		handle(lines.Text())
	}
	err = cmd.Wait()
	return diag.String(), err
}

func TestProgramSurvivesDaemonRestart(t *testing.T) {
	runWithoutDaemon(t, "daemon_restart")
}

func TestUsedObjectsAreBusyWithoutTheDaemon(t *testing.T) {
	runWithoutDaemon(t, "daemon_gone")
}

func TestAddressHandlesShareOneOfTheDaemon(t *testing.T) {
	runProgram(t, verbstest.New(t, verbstest.WithLimits(verbstest.Limits{AHs: 100})), "address_handles")
}

// AddressSanitizer cannot be used: its allocator does not survive the fork of a process with
// threads.
func TestForkedChildrenOfThreadsDoNotHang(t *testing.T) {
	out, err := plain.command(t, programLimit, verbstest.New(t).Socket(), plain.compile(t, "fork")).CombinedOutput()
	if err != nil {
		t.Errorf("fork: %v\n%s", err, out)
	}
}

func TestForkedChildDoesNotWaitForFirstUse(t *testing.T) {
	out, err := plain.command(t, programLimit, verbstest.New(t).Socket(), plain.compile(t, "fork_first_use")).CombinedOutput()
	if err != nil {
		t.Errorf("fork_first_use: %v\n%s", err, out)
	}
}
