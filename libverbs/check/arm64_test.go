package check

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs for arm64 run in an emulator. Their C library is in the cross compiler's directory.
var arm64 = newBuild("arm64", "aarch64-linux-gnu-gcc", "-O2", "-idirafter", "/usr/include").
	in("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")

// TestTortureOnARM64 runs the libraries for arm64 beside a daemon for this machine: both have the
// same layout of what they share. Addresses in the emulated process are those of the emulator, so
// the daemon finds registered memory. The order of memory accesses remains that of this machine.
func TestTortureOnARM64(t *testing.T) {
	torture(t, arm64, tortureSocket(t), "lives")
}

// TestFencesOnARM64 looks for the fence between storing a word of a ring and loading the one that
// the daemon stores (package internal/abi), where an acquire is not enough.
func TestFencesOnARM64(t *testing.T) {
	dir := arm64.library(t)
	for function, object := range map[string]string{"sr_req_notify_cq": "ibverbs/cq.o", "sr_post_recv": "ibverbs/post.o"} {
		out, err := exec.Command("aarch64-linux-gnu-objdump", "-d", filepath.Join(dir, "obj", object)).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, code, found := strings.Cut(string(out), "<"+function+">:")
		code, _, _ = strings.Cut(code, "\n\n")
		if !found || !strings.Contains(code, "dmb\tish\n") {
			t.Errorf("%s has no full fence:\n%s", function, code)
		}
	}
}
