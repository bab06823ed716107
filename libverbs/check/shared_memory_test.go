package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/internal/hugepagetest"
	"softroce/nic"
	"softroce/verbs/verbstest"
)

// shareMemory makes a program share the memory that it registers, as softroce run --memory=auto
// does.
func shareMemory(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "SOFTROCE_MEMORY=auto") }

// TestSharedMemoryIsThatOfTheProgram compares what the program expects of a region, an address and
// the words for how its memory is accessed and why, with what the daemon says. AddressSanitizer has
// an allocator and checks of its own, which must not notice an exchange.
func TestSharedMemoryIsThatOfTheProgram(t *testing.T) {
	for _, program := range []string{"shared_memory", "shared_memory_allocations", "shared_memory_extended", "shared_memory_processes"} {
		t.Run(program+"/plain", func(t *testing.T) { runSharedMemory(t, plain, program) })
		t.Run(program+"/sanitized", func(t *testing.T) { runSharedMemory(t, sanitized, program) })
	}
}

func runSharedMemory(t *testing.T, b *build, program string) {
	t.Helper()
	runMemoryProgram(t, b, shareMemory, program)
}

// runMemoryProgram runs a program in the environment that prepare makes.
func runMemoryProgram(t *testing.T, b *build, prepare func(*exec.Cmd), program string, args ...string) {
	t.Helper()
	f := newMemoryFabric(t)
	cmd := b.command(t, 3*programLimit, f.Socket(), b.compile(t, program), args...)
	prepare(cmd)
	stderr, err := converse(t, cmd, func(line string) { checkAccess(t, f, program, line) })
	if err != nil || stderr != "" {
		t.Errorf("%v\n%s", err, stderr)
	}
}

func newMemoryFabric(t *testing.T) *fabrictest.Fabric {
	t.Helper()
	return fabrictest.New(t, fabrictest.Config{NICs: 1, Limits: attach.Limits{Registered: 4 << 30}})
}

// checkAccess compares a line of a program, which says how a region is accessed, with the daemon.
// Where every test must run, only what depends on the processor may be left out.
func checkAccess(t *testing.T, f *fabrictest.Fabric, program, line string) {
	t.Helper()
	if what, ok := strings.CutPrefix(line, "left out: "); ok {
		t.Logf("%s: %s", program, line)
		if os.Getenv("CI") == "true" && !strings.HasPrefix(what, "protection keys") {
			t.Errorf("%s: %s", program, line)
		}
		return
	}
	address, want, _ := strings.Cut(line, " ")
	if got := accessOf(f, address); !strings.HasPrefix(want, got+" (") {
		t.Errorf("%s: %s: is %s", program, want, got)
	}
}

func TestMemoryIsSharedOnRequestOnly(t *testing.T) {
	for _, c := range []struct{ mode, want string }{
		{"", "process disabled"}, {"process", "process disabled"}, {"other", "process disabled"}, {"auto", "mapped"},
	} {
		t.Run("mode="+c.mode, func(t *testing.T) {
			set := func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "SOFTROCE_MEMORY="+c.mode) }
			runMemoryProgram(t, plain, set, "unshared", c.want)
		})
	}
	t.Run("unset", func(t *testing.T) {
		unset := func(cmd *exec.Cmd) {
			cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "SOFTROCE_MEMORY=") })
		}
		runMemoryProgram(t, plain, unset, "unshared", "process disabled")
	})
}

// needRoot skips a test that needs root, unless every test must run.
func needRoot(t *testing.T, what string) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s: needs root", what)
	default:
		t.Skipf("%s: needs root", what)
	}
}

func TestHugePagesAreNotShared(t *testing.T) {
	needRoot(t, "reserving huge pages")
	if err := hugepagetest.Reserve(t, 1); err != nil {
		t.Fatal(err)
	}
	runMemoryProgram(t, plain, shareMemory, "unshared", "process kind", "huge")
}

func TestSharedMemoryKeepsAdviceOnHugePages(t *testing.T) {
	runMemoryProgram(t, plain, shareMemory, "memory_thp")
}

func TestLockedMemoryIsLimitedAsBefore(t *testing.T) {
	needRoot(t, "more locked memory than the usual limit")
	runMemoryProgram(t, plain, shareMemory, "memory_locked")
}

// The kernel's setting concerns all processes. So a file is mounted over the one that shows it, for
// the program only.
func TestMemoryIsNotSharedUnderStrictOvercommit(t *testing.T) {
	needRoot(t, "a mount namespace")
	strict := filepath.Join(t.TempDir(), "overcommit_memory")
	if err := os.WriteFile(strict, []byte("2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	runMemoryProgram(t, plain, func(cmd *exec.Cmd) {
		shareMemory(cmd)
		cmd.Path = unshare
		cmd.Args = append([]string{unshare, "--mount", "--propagation", "private", "sh", "-c",
			`mount --bind "$0" /proc/sys/vm/overcommit_memory && exec "$@"`, strict}, cmd.Args...)
	}, "unshared", "process limit")
}

// TestCoreDumpsHaveSharedMemory looks for the contents of regions in a core dump. The kernel
// writes it, or gcore by the same rules if the kernel is set to pass core dumps to a program or to
// write them elsewhere.
func TestCoreDumpsHaveSharedMemory(t *testing.T) {
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	byKernel := !strings.ContainsAny(string(pattern), "|/")
	f, dir := newMemoryFabric(t), t.TempDir()
	cmd := plain.command(t, programLimit, f.Socket(), plain.compile(t, "core_dump"))
	shareMemory(cmd)
	cmd.Dir = dir
	stderr, err := converse(t, cmd, func(line string) {
		checkAccess(t, f, "core_dump", line)
		if byKernel {
			return
		}
		gcore := exec.Command("gcore", "-o", filepath.Join(dir, "core"), strconv.Itoa(cmd.Process.Pid))
		if out, err := gcore.CombinedOutput(); err != nil {
			t.Errorf("%s passes core dumps on, and gcore does not work: %v\n%s", pattern, err, out)
		}
	})
	if stderr != "" || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT {
		t.Errorf("%v\n%s", err, stderr)
	}
	cores, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(cores) != 1 {
		t.Fatalf("core dumps: %v, %v", cores, err)
	}
	core, err := os.ReadFile(cores[0])
	if err != nil {
		t.Fatal(err)
	}
	for region := range 3 {
		if !bytes.Contains(core, filled(64*4096, region)) {
			t.Errorf("%s, %d bytes, does not have the contents of region %d", cores[0], len(core), region)
		}
	}
}

// filled returns what fill of shared_memory.h writes.
func filled(size, seed int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i/64*7 + i + seed)
	}
	return b
}

// accessOf returns how the memory at an address is accessed, and why, of the latest region there.
func accessOf(f *fabrictest.Fabric, address string) (how string) {
	for _, d := range f.Server.Snapshot().Devices {
		var latest nic.MRInfo
		for _, m := range d.MRs {
			if m.IOVA.String() == address && m.ID > latest.ID {
				latest = m
			}
		}
		how += strings.TrimSpace(latest.Backing + " " + latest.Unshared)
	}
	return how
}

func TestMemoryThatCannotBeSharedIsRefused(t *testing.T) {
	cmd := plain.command(t, programLimit, verbstest.New(t).Socket(), plain.compile(t, "shared_only"))
	cmd.Env = append(cmd.Env, "SOFTROCE_MEMORY=shared", "IBV_SHOW_WARNINGS=1")
	out, err := cmd.CombinedOutput()
	const kind = "memory at 0x[0-9a-f]+ of 65536 bytes cannot be shared: kind"
	want := ""
	for _, warning := range []string{kind, kind, kind, ".*the descriptor cannot be sealed .*"} {
		want += "libibverbs: softroce: " + warning + "\n"
	}
	if err != nil || !regexp.MustCompile("^"+want+"$").Match(out) {
		t.Errorf("%v, want\n%s, got\n%s", err, want, out)
	}
}

func TestSharedMemoryUnderThreadsForksAndAdvice(t *testing.T) {
	seed := time.Now().UnixNano() % (1 << 31)
	d, f := tortureTime(t), newMemoryFabric(t)
	cmd := plain.command(t, d+3*programLimit, f.Socket(), plain.compile(t, "memory_torture"),
		strconv.Itoa(int(d.Seconds())), strconv.FormatInt(seed, 10))
	shareMemory(cmd)
	stderr, err := converse(t, cmd, func(line string) {
		if strings.HasPrefix(line, "0x") {
			checkAccess(t, f, "memory_torture", line)
		} else {
			t.Logf("seed %d: %s", seed, line)
		}
	})
	if err != nil || stderr != "" {
		t.Errorf("seed %d: %v\n%s", seed, err, stderr)
	}
}

func TestSharedMemoryOfPythonMultiprocessing(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	for _, c := range []struct {
		name    string
		preload bool // as softroce run does
		args    []string
	}{
		{"fork without preloading", false, []string{"fork"}},
		{"fork beside a thread", true, []string{"fork", "thread"}},
		{"spawn", true, []string{"spawn"}},
		{"forkserver", true, []string{"forkserver"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{NICs: 1, NoLeakCheck: true})
			cmd := plain.command(t, 3*programLimit, f.Socket(), python, append([]string{"testdata/multiprocess.py"}, c.args...)...)
			shareMemory(cmd)
			if c.preload {
				cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(plain.library(t), "libibverbs.so.1"))
			}
			asked := 0
			stderr, err := converse(t, cmd, func(line string) {
				asked++
				checkAccess(t, f, "multiprocess.py", line)
			})
			if err != nil || asked != 2 {
				t.Errorf("%v, %d regions of 2\n%s", err, asked, stderr)
			}
		})
	}
}
