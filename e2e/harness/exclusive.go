package harness

import (
	"flag"
	"sync"
	"testing"
	"time"
)

// Tests mostly wait: for guests, for timers, for other programs. They run in parallel, and each of
// these is used by one test at a time.
var (
	BridgeGuest   Exclusive // the guest on the bridge
	DgramGuest    Exclusive // the guest whose network is QEMU's datagrams
	LocalPrograms Exclusive // the processors, for programs that run on softroce alone
)

// Exclusive is a resource that one test at a time can use.
type Exclusive struct{ mu sync.Mutex }

// Acquire makes the test parallel and waits until the resource is free. The test holds it until the
// test and its subtests have ended and their cleanups have run, so a test calls Acquire first.
func (e *Exclusive) Acquire(t *testing.T) {
	t.Helper()
	t.Parallel()
	logWait(t, e.mu.Lock)
	t.Cleanup(e.mu.Unlock)
}

// logWait logs how long acquire took. scripts/testreport subtracts that from the test's time.
func logWait(t *testing.T, acquire func()) {
	t.Helper()
	start := time.Now()
	acquire()
	t.Logf("waited %v for exclusive use", time.Since(start))
}

// programs is held by the pair of programs that runs in a parallel subtest. They poll: on two
// processors, two pairs at once took four times as long as one after the other, and guests did not
// reply before their peers gave up.
var programs sync.Mutex

// AcquirePrograms waits until no other pair of programs runs. The caller calls release after its
// own.
func AcquirePrograms(t *testing.T) (release func()) {
	t.Helper()
	logWait(t, programs.Lock)
	return programs.Unlock
}

// allowParallelWaiters raises the limit of parallel tests. By default it is the number of
// processors: on a machine with two, two tests that wait for the same resource would block all
// others. Exclusive and programs bound what runs.
func allowParallelWaiters() error {
	flag.Parse()
	return flag.Set("test.parallel", "1000")
}
