package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"softroce/e2e/rxelab"
)

// What all tests share. Each is created when the first test needs it, and removed by Main.
var (
	buildOnce = sync.OnceValues(buildBinary)
	bridgeLab = sync.OnceValues(func() (*rxelab.Lab, error) { return bootKept(false) })
	dgramLab  = sync.OnceValues(func() (*rxelab.Lab, error) { return bootKept(true) })

	workDir string

	bootMu sync.Mutex // labs boot one after the other
	labsMu sync.Mutex
	labs   []*rxelab.Lab
)

// Main runs the tests of a package and returns the exit status, for TestMain.
func Main(m *testing.M) int {
	if err := allowParallelWaiters(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if workDir, err = makeShortDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(workDir)
	// A test run that was killed, or that panicked, has not cleaned up.
	if err := rxelab.SweepNamespaces(context.Background(), namespacePrefixes...); err != nil {
		fmt.Fprintln(os.Stderr, "removing namespaces of killed test runs:", err)
	}
	if err := rxelab.SweepDirectories(namespacePrefixes[0]); err != nil {
		fmt.Fprintln(os.Stderr, "removing directories of killed test runs:", err)
	}
	status := 1
	defer func() {
		for _, l := range labs {
			if status != 0 {
				saveConsoles(l)
			}
			if err := l.Down(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	status = m.Run()
	return status
}

// saveConsoles copies the guests' consoles, which show why a guest has crashed, to files that stay,
// and prints their names.
func saveConsoles(l *rxelab.Lab) {
	dir, err := os.MkdirTemp("", "softroce-consoles-")
	if err == nil {
		err = l.SaveConsoles(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "saving the consoles of guests:", err)
		return
	}
	fmt.Fprintln(os.Stderr, "consoles of the guests are in", dir)
}

// WorkDir is a directory that lasts as long as the test run, for what several tests use.
func WorkDir() string { return workDir }

// ShortDir creates a directory whose path is short enough for sockets in it.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := makeShortDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// makeShortDir names the directory so that the next run can remove it if this process is killed.
func makeShortDir() (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", namespacePrefixes[0], os.Getpid()))
}

// Binary returns the path of the softroce binary under test. $SOFTROCE_E2E_BINARY names another
// build of it, such as one with the race detector.
func Binary(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func buildBinary() (string, error) {
	if path := os.Getenv("SOFTROCE_E2E_BINARY"); path != "" {
		return path, nil
	}
	path := filepath.Join(workDir, "softroce")
	out, err := exec.Command("go", "build", "-o", path, "softroce/cmd/softroce").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

// labLimit is how long booting a lab may take: packages may have to be downloaded.
const labLimit = 15 * time.Minute

// bootKept boots a lab that stays until the end of the run.
func bootKept(dgram bool) (*rxelab.Lab, error) {
	l, err := bootLab(rxelab.Options{Kernel: kernelPackage, Dgram: dgram})
	if err == nil {
		labsMu.Lock()
		defer labsMu.Unlock()
		labs = append(labs, l)
	}
	return l, err
}

func bootLab(o rxelab.Options) (*rxelab.Lab, error) {
	ctx, cancel := context.WithTimeout(context.Background(), labLimit)
	defer cancel()
	bootMu.Lock()
	defer bootMu.Unlock()
	return rxelab.Up(ctx, o)
}

// BridgeLab returns the lab whose guest is on a bridge. The test must hold BridgeGuest.
func BridgeLab(t *testing.T) *rxelab.Lab { return needLab(t, bridgeLab) }

// DgramLab returns the lab whose guest's network is QEMU's datagrams. The test must hold
// DgramGuest.
func DgramLab(t *testing.T) *rxelab.Lab { return needLab(t, dgramLab) }

// ZeroCopyLab boots a lab whose guest's eth0 offers AF_XDP zero-copy. It ends with the test.
func ZeroCopyLab(t *testing.T) *rxelab.Lab {
	t.Helper()
	l, err := bootLab(rxelab.Options{Kernel: rxelab.KernelZeroCopy, MTU: 1500, ZeroCopy: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		words, wordsErr := l.LastWords(ctx)
		damage, damageErr := l.Damage()
		if words+damage != "" {
			t.Errorf("the guest has ended: %q, or its kernel is damaged: %q", words, damage)
		}
		if t.Failed() {
			saveConsoles(l)
		}
		if err := errors.Join(wordsErr, damageErr, l.Down()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// needLab returns a lab whose guests run. A test in which a guest ends fails, and the next one has
// a new guest. So has the one after a test that has damaged the guest's kernel.
func needLab(t *testing.T, boot func() (*rxelab.Lab, error)) *rxelab.Lab {
	t.Helper()
	l, err := boot()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		words, err := l.LastWords(ctx)
		if words != "" {
			t.Errorf("a guest has ended: %s", words)
		}
		damage, damageErr := l.Damage()
		if damage != "" {
			t.Logf("the guest is replaced by a new one, because its kernel says: %s", damage)
		}
		if words+damage != "" {
			ctx, cancel := context.WithTimeout(ctx, labLimit)
			defer cancel()
			err = errors.Join(err, l.Reboot(ctx))
		}
		if err := errors.Join(err, damageErr); err != nil {
			t.Error(err)
		}
	})
	return l
}

// NeedRoot skips the test where it cannot run; what names what it needs root for.
func NeedRoot(t *testing.T, what string) {
	t.Helper()
	switch {
	case runtime.GOARCH != "amd64":
		t.Skipf("the lab's guests are for amd64, this is %s", runtime.GOARCH)
	case os.Geteuid() != 0:
		t.Skipf("needs root, for %s", what)
	case testing.Short():
		t.Skip("not with -short")
	}
}
