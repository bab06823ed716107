package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/e2e/verbspeer"
)

// TestCaptureOfAKernelConversationReplays records what the daemon exchanges with the kernel
// and replays it: a fresh softroce answers the kernel's requests as the daemon did, and the
// daemon's as the kernel did.
func TestCaptureOfAKernelConversationReplays(t *testing.T) {
	overEachLink(t, func(t *testing.T, s *site) {
		bin, err := softroceBinary()
		if err != nil {
			t.Fatal(err)
		}
		large := func(o *verbspeer.Options) { o.RecvSize = 128 << 10 }
		families := ipVersions
		if !s.first() {
			families = families[1:]
		}
		for _, v := range families {
			t.Run(v.name, func(t *testing.T) {
				file := filepath.Join(t.ArtifactDir(), "daemon.pcapng")
				stop := s.capture(t, bin, file)
				s.bothRoles(t, v, []conversation{
					{name: "every operation", ops: operations(1024), client: with(large), server: with(large)},
				})
				stop()
				if out, err := exec.Command(bin, "replay", file).CombinedOutput(); err != nil {
					t.Errorf("replay: %v\n%s", err, out)
				}
			})
		}
	})
}

// capture runs softroce capture until the function that it returns is called.
func (s *site) capture(t *testing.T, bin, file string) (stop func()) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(bin, "--socket", s.socket, "capture", "-o", file)
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(startLimit); ; time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(file); err == nil && st.Size() > 0 {
			break
		}
		if time.Now().After(limit) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("capture does not begin: %s", &said)
		}
	}
	return func() {
		t.Helper()
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), " 0 lost") {
			t.Errorf("capture: %v, %s", err, &said)
		}
	}
}
