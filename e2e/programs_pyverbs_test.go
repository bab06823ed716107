package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"softroce/e2e/harness"
	"softroce/internal/hugepagetest"
	"strings"
	"testing"
	"time"
)

// pyverbsTests is where Debian's python3-pyverbs installs rdma-core's tests.
const pyverbsTests = "/usr/share/doc/rdma-core/tests"

// pyverbsMetrics is where the daemon serves metrics, in a network namespace.
const pyverbsMetrics = "127.0.0.1:9100"

// pyverbsModules are the modules for features of a RoCE device: 143 tests, and 17 of on-demand
// paging.
var pyverbsModules = []string{
	"addr", "atomic", "cq", "cq_events", "cqex", "device", "fork", "mr", "odp", "pd", "parent_domain", "qp", "qpex", "rdmacm", "relaxed_ordering",
	"shared_pd",
}

// skippedTests maps prefixes of test names to the reason why the tests do not pass.
var skippedTests = map[string]string{
	"tests.test_qp.QPTest.test_create_raw_qp_no_attr":                         "no raw packet queue pairs",
	"tests.test_qp.QPTest.test_create_raw_qp_with_attr":                       "no raw packet queue pairs",
	"tests.test_qp.QPTest.test_create_raw_qp_ex_no_attr":                      "no raw packet queue pairs",
	"tests.test_qp.QPTest.test_create_raw_qp_ex_with_attr":                    "no raw packet queue pairs",
	"tests.test_qp.QPTest.test_query_raw_qp":                                  "no raw packet queue pairs",
	"tests.test_odp.OdpTestCase.test_odp_implicit_":                           "no region of a whole address space",
	"tests.test_odp.OdpTestCase.test_odp_async_prefetch_":                     "no prefetching: nothing is ever pinned",
	"tests.test_odp.OdpTestCase.test_odp_sync_prefetch_":                      "no prefetching: nothing is ever pinned",
	"tests.test_odp.OdpTestCase.test_odp_prefetch_":                           "no prefetching: nothing is ever pinned",
	"tests.test_odp.OdpTestCase.test_odp_rc_huge_":                            hugePages,
	"tests.test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic": hugePages,
}

// hugePages is the reason of tests that pass if the machine has free huge pages.
const hugePages = "needs huge pages on the machine"

// pyverbsHugePages is how many the tests need: each has two endpoints with one or two pages.
const pyverbsHugePages = 8

// TestRDMACoreTestSuite runs rdma-core's tests of its library and drivers on a NIC of softroce in a
// network namespace, with the library as programs use it and with the library built with
// sanitizers. pyverbs/gpu.py replaces the GPU. In all runs but one the memory of regions is shared,
// with pages of their own by pyverbs/pages.py.
func TestRDMACoreTestSuite(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	harness.NeedPrograms(t)
	if _, err := os.Stat(pyverbsTests); err != nil {
		t.Skipf("%v: scripts/setup test installs python3-pyverbs", err)
	}
	ns := harness.VethNamespaces(t)[0]
	within := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns}, argv...)...)
	}
	tests := unpackTests(t, pyverbsTests)
	noHugePages := hugepagetest.Reserve(t, pyverbsHugePages)
	if noHugePages != nil {
		t.Logf("no huge pages: %v", noHugePages)
		if os.Getenv("CI") == "true" {
			t.Error("huge pages are required where CI=true")
		}
	}
	run := func(t *testing.T, engines int, dir string, env ...string) (report string) {
		socket := filepath.Join(t.TempDir(), "s")
		d := harness.StartDaemon(t, within, "--socket", socket, "--metrics", pyverbsMetrics,
			"--nic", fmt.Sprintf("softroce0=packet:rdma0,engines=%d", engines))
		survivor := harness.OpenNIC(t, d, socket)
		gid := fmt.Sprint(harness.GIDs(t, socket, "softroce0")[false])
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		// pyverbs is built for the system's Python.
		cmd := within(ctx, append([]string{"env"}, env...)...)
		cmd.Args = append(cmd.Args, "/usr/bin/python3", "pyverbs/report.py", tests, "softroce0", gid)
		cmd.Args = append(cmd.Args, pyverbsModules...)
		cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
		var details strings.Builder
		cmd.Stderr = &details
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("the test run failed: %v", err)
		}
		checkReport(t, string(out), noHugePages == nil)
		for _, sign := range []string{"ERROR: AddressSanitizer", "runtime error:"} {
			if strings.Contains(details.String(), sign) {
				t.Errorf("the output contains %q", sign)
			}
		}
		if _, err := survivor.QueryPort(t.Context()); err != nil {
			t.Errorf("a query by another client afterwards: %v", err)
		}
		if t.Failed() {
			t.Logf("%s\n%s", out, &details)
		}
		return string(out)
	}
	share := []string{"SOFTROCE_MEMORY=auto", "METRICS=http://" + pyverbsMetrics + "/metrics"}
	dir := harness.Libraries(t)
	preload := "LD_PRELOAD=" + filepath.Join(dir, "libibverbs.so.1")
	t.Run("preloaded, engines=1", func(t *testing.T) { checkMapped(t, run(t, 1, dir, append(share, preload)...)) })
	t.Run("preloaded, engines=2, process memory", func(t *testing.T) { run(t, 2, dir, preload) })
	t.Run("preloaded, engines=4", func(t *testing.T) { checkMapped(t, run(t, 4, dir, append(share, preload)...)) })
	t.Run("sanitized", func(t *testing.T) {
		checked, runtime := harness.SanitizedLibraries(t)
		// Python's own leaks are ignored.
		checkMapped(t, run(t, 1, checked, append(share, "LD_PRELOAD="+runtime+" "+filepath.Join(checked, "libibverbs.so.1"),
			"ASAN_OPTIONS=detect_leaks=0", "PYTHONMALLOC=malloc")...))
	})
}

// checkMapped requires that the daemon mapped the regions that are not for on-demand paging.
func checkMapped(t *testing.T, report string) {
	t.Helper()
	const least = 100 // of about 145
	_, last, _ := strings.Cut(report, "\n# mapped ")
	var mapped, all int
	if _, err := fmt.Sscanf(last, "%d of %d regions", &mapped, &all); err != nil || mapped < least {
		t.Errorf("%d of %d regions are mapped, want at least %d (%v)", mapped, all, least, err)
	}
	t.Logf("%d of %d regions are mapped", mapped, all)
}

// unpackTests copies the tests, some of which the package has compressed.
func unpackTests(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tests")
	harness.RunCommand(t, "cp", "-r", from, dir)
	zipped, err := filepath.Glob(filepath.Join(dir, "*.gz"))
	if err != nil || len(zipped) == 0 {
		t.Fatalf("compressed tests in %s: %v, %v", dir, zipped, err)
	}
	harness.RunCommand(t, "gunzip", zipped...)
	return dir
}

// checkReport compares the results of the tests with the expected ones.
func checkReport(t *testing.T, report string, huge bool) {
	t.Helper()
	passed, all := 0, 0
	for line := range strings.Lines(report) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(f) < 2 {
			continue
		}
		all++
		name, outcome := f[0], f[1]
		reason := skipReason(name)
		if reason == hugePages && huge {
			reason = ""
		}
		switch {
		case outcome == "ok" && reason != "":
			t.Errorf("%s passes, but is listed as skipped: %s", name, reason)
		case outcome == "ok":
			passed++
		case outcome == "skip" && reason != "":
		default:
			t.Errorf("%s", strings.TrimSpace(line))
		}
	}
	if all < 155 {
		t.Errorf("only %d tests ran: some of rdma-core's are missing", all)
	}
	t.Logf("%d of %d tests pass", passed, all)
}

// skipReason returns why a test is skipped, or "".
func skipReason(test string) string {
	for _, prefix := range slices.Sorted(maps.Keys(skippedTests)) {
		if strings.HasPrefix(test, prefix) {
			return skippedTests[prefix]
		}
	}
	return ""
}
