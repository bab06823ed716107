package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"softroce/e2e/harness"
	"strings"
	"testing"
	"time"
)

// TestDMABufWithKernelExporters runs the tests of package verbs for device memory and DMA buffers
// in a guest, with a daemon that is part of the test. Debian's kernels after 6.1 have exporters of
// DMA buffers that need no GPU: udmabuf and the system heap.
func TestDMABufWithKernelExporters(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.BridgeGuest.Acquire(t)
	lab := harness.BridgeLab(t)
	bin := filepath.Join(t.TempDir(), "verbs.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s -w", "-o", bin, "softroce/verbs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the guest has other shared libraries
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const inGuest = "/tmp/verbs.test"
	g := lab.Guests[0]
	if err := g.Put(t.Context(), bin, inGuest); err != nil {
		t.Fatal(err)
	}
	kinds, env := []string{"device", "sealed", "guarded"}, ""
	if harness.OtherKernel() {
		kinds, env = append(kinds, "udmabuf", "heap"), "SOFTROCE_EVERY_EXPORTER=1 "
	}
	out, err := g.Run(t.Context(), time.Minute, "cd /tmp && "+env+inGuest+" -test.v -test.run 'DMABuf|DeviceMemory'; s=$?; rm "+inGuest+"; exit $s")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, kind := range kinds {
		if !strings.Contains(out, "--- PASS: TestEveryOperationOnDeviceMemoryAndDMABuffers/"+kind+" ") {
			t.Errorf("no test passed with memory of kind %s\n%s", kind, out)
		}
	}
}
